"""Peak memory of one iteration: the allocator's on a GPU, the bytes of live tensors on a CPU."""

import resource
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveTensorBytes(TorchDispatchMode):
    """Counts the bytes of every tensor storage that lives while the mode is active.

    It slows every operator down, so it covers one iteration that is not timed. Storages that operators use
    internally and free before they return are not seen.
    """

    def __init__(self, already_live: Iterable[torch.Tensor], resized: bool = False) -> None:
        """`resized`: storages change their size while they live, as ZeRO-3's do; each is then looked at every time."""
        super().__init__()
        self.resized = resized
        self.live = 0
        self.peak = 0
        self.known: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # by the storage object's id
        self.sizes: dict[int, int] = {}
        for tensor in already_live:
            self._see(tensor)

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.known or storage.filename is not None:  # what ranks share is none's own
            return
        size = storage.nbytes()

        def gone(_: weakref.ref[torch.UntypedStorage]) -> None:
            del self.known[key]
            self.live -= self.sizes.pop(key)

        self.known[key] = weakref.ref(storage, gone)
        self.sizes[key] = size
        self.live += size
        self.peak = max(self.peak, self.live)

    def _look_again(self) -> None:
        for key, known in list(self.known.items()):
            if (storage := known()) is not None and (size := storage.nbytes()) != self.sizes[key]:
                self.live += size - self.sizes[key]
                self.sizes[key] = size
        self.peak = max(self.peak, self.live)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and skipping would import the compiler, seconds per rank

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.resized:
            self._look_again()
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self._see(value)
        return result


def resident_bytes() -> int:
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
