"""Number formats of training, and the loss scale that keeps fp16 gradients from vanishing."""

import math
from typing import Literal

import torch

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

INITIAL_SCALE = 2.0**16  # the defaults of torch.amp.GradScaler
GROWTH_INTERVAL = 2000  # steps without overflow after which a dynamic scale doubles


class LossScale:
    """A factor on the loss, fixed or dynamic; 1 for every format but fp16.

    A step whose global gradient norm is not finite is skipped. A dynamic scale then halves.
    """

    def __init__(self, precision: str, setting: float | Literal["dynamic"]) -> None:
        self.active = precision == "fp16"
        self.dynamic = setting == "dynamic"
        self.value = 1.0 if not self.active else INITIAL_SCALE if setting == "dynamic" else float(setting)
        self.good_steps = 0
        self.skipped = 0

    def accepts(self, norm: float) -> bool:
        """Whether this step may update the weights, given the global gradient norm; adapts the scale."""
        if not self.active:
            return True
        if not math.isfinite(norm):
            self.skipped += 1
            self.good_steps = 0
            self.value = self.value / 2 if self.dynamic else self.value
            return False
        self.good_steps += 1
        if self.dynamic and self.good_steps == GROWTH_INTERVAL:
            self.value, self.good_steps = self.value * 2, 0
        return True
