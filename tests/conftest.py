"""One thread per process: the tests fork ranks, and a forked thread pool hangs."""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A shell starts what it puts into the background with interrupts ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
