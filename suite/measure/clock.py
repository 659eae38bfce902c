"""Times of compute actions on the device they run on."""

from time import perf_counter
from typing import Protocol

import torch


class Clock(Protocol):
    """Marks points in time; `seconds` gives them on one time axis once the iteration is over."""

    def mark(self) -> int:
        """Note this moment; returns its number."""

    def seconds(self) -> list[float]:
        """All marks since the last call, in seconds of the host's monotonic clock; forgets them."""


class HostClock:
    """The host's monotonic clock, which all processes of a host share."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def mark(self) -> int:
        """Note this moment; returns its number."""
        self.marks.append(perf_counter())
        return len(self.marks) - 1

    def seconds(self) -> list[float]:
        """All marks since the last call; forgets them."""
        marks, self.marks = self.marks, []
        return marks


class DeviceClock:
    """CUDA events, placed on the host's time axis by one synchronisation per iteration."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> int:
        """Put an event into the current stream; returns its number."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)
        return len(self.events) - 1

    def seconds(self) -> list[float]:
        """All events since the last call; waits for the device once."""
        events, self.events = self.events, []
        if not events:
            return []
        torch.cuda.synchronize()
        now = perf_counter()
        last = torch.cuda.Event(enable_timing=True)
        last.record()
        last.synchronize()
        return [now - event.elapsed_time(last) / 1e3 for event in events]


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return DeviceClock() if device.type == "cuda" else HostClock()
