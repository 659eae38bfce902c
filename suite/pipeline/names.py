"""The schedule names that experiment files may use, known without importing a generator."""

from typing import Literal, get_args

ScheduleName = Literal[
    "gpipe",
    "1f1b",
    "interleaved",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "interleaved-zb",
    "zb-v",
    "v-min",
    "v-half",
    "v-zb",
    "chimera",
    "2bp-gpipe",
    "2bp-1f1b",
    "hanayo",
    "dualpipe",
    "dualpipe-v",
    "list",
    "readiness",
    "file",
]
SCHEDULE_NAMES: tuple[str, ...] = get_args(ScheduleName)

_TWO_CHUNKS = ("interleaved", "looped-bfs", "interleaved-zb", "zb-v", "v-min", "v-half", "v-zb", "hanayo", "dualpipe-v")


def default_chunks(name: object) -> int:
    """Model chunks per rank where the user gives none: the smallest number at which `name` differs."""
    return 2 if name in _TWO_CHUNKS else 1
