"""Peak memory of one iteration: the allocator's on a GPU, the bytes of live tensors on a CPU."""

import resource
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensorBytes(TorchDispatchMode):
    """Counts the bytes of every tensor storage that lives while the mode is active.

    It slows every operator down, so it covers one iteration that is not timed. Storages that operators use
    internally and free before they return are not seen.
    """

    def __init__(self, already_live: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        for tensor in already_live:
            self._see(tensor)

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self.known:
            return
        self.known.add(storage)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return result


def resident_bytes() -> int:
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
