"""Making millions of small tuples without Python's garbage collector walking them again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """The collector is off inside: none of the tuples that a schedule consists of is garbage while it is made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
