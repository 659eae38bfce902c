"""One thread per process: the tests fork ranks, and a forked thread pool hangs."""

import contextlib
import os
import signal
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process that is started would compile the suite again

# A shell starts what it puts into the background with interrupts ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton decides when it is imported whether its own functions are interpreted, which the tests of kernels need, and
# whatever else imports it first would decide otherwise. What the tests start decides anew.
with contextlib.suppress(ImportError), mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
    import triton.language  # noqa: F401


def pytest_collection_modifyitems(items):
    """Files that start processes come first: they take longest, and a worker takes whole files (--dist loadfile)."""
    starting = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in starting)
