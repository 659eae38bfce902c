"""One thread per process: the tests fork ranks, and a forked thread pool hangs."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
