"""The schedule names that experiment files may use, known without importing a generator."""

from typing import Literal, get_args

ScheduleName = Literal["gpipe", "1f1b", "interleaved"]
SCHEDULE_NAMES: tuple[str, ...] = get_args(ScheduleName)


def default_chunks(name: object) -> int:
    """Model chunks per rank where the user gives none: the smallest number at which `name` differs."""
    return 2 if name == "interleaved" else 1
