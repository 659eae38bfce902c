"""Peak arithmetic rates of devices, each with its source: what percentages of peak divide by.

Only dense rates: a rate with structured sparsity is twice what a dense matrix product can reach. A device
that is not in the table has no peak, and so no percentage; it never takes another device's.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """The highest rate of one device at one precision, in FLOP/s, and who says so."""

    flops_per_device: float
    precision: str
    source: str
    dense: bool = True


@dataclass(frozen=True)
class _Device:
    name: str
    pattern: str  # of the whole name that the driver reports, without "NVIDIA" or "Tesla" before it
    datasheet: str
    half: float  # tensor cores, fp32 accumulation
    bf16: bool
    fp32: float | None = None  # outside the tensor cores: TF32 is another precision
    fp64: float | None = None
    fp64_units: str = "FP64"


_TENSOR = "FP64 Tensor Core, which cuBLAS uses"

_DEVICES = (
    _Device("V100 PCIe", r"V100-PCIE-\d+GB", "Tesla V100 datasheet", 112e12, False, 14e12, 7e12),
    _Device("V100 SXM2", r"V100-SXM[23]-\d+GB", "Tesla V100 datasheet", 125e12, False, 15.7e12, 7.8e12),
    _Device(
        "A100",
        r"A100(-SXM4-\d+GB|-PCIE-40GB| 80GB PCIe)?",
        "A100 Tensor Core GPU datasheet",
        312e12,
        True,
        19.5e12,
        19.5e12,
        _TENSOR,
    ),
    _Device(
        "H100 PCIe",
        r"H100 PCIe",
        "H100 Tensor Core GPU datasheet",
        756e12,
        True,
        51.2e12,
        51.2e12,
        _TENSOR,
    ),
    _Device(
        "H100 SXM5",
        r"H100 80GB HBM3",
        "H100 Tensor Core GPU Architecture whitepaper",
        989.4e12,
        True,
        66.9e12,
        66.9e12,
        _TENSOR,
    ),
    _Device("H200 SXM", r"H200", "H200 Tensor Core GPU datasheet", 989.4e12, True, 66.9e12, 66.9e12, _TENSOR),
    _Device("B200", r"B200", "DGX B200 datasheet (half of the rate with sparsity)", 2.25e15, True),
)


def find_peak(device: str, precision: str) -> tuple[Peak | None, str | None]:
    """The peak of the device by the name that its driver reports, or None and the reason.

    `precision` is fp16, bf16, fp32 or fp64. A slice of a device (MIG) has no entry.
    """
    name = re.sub(r"^(NVIDIA |Tesla )+", "", device.strip())
    found = next((entry for entry in _DEVICES if re.fullmatch(entry.pattern, name)), None)
    if found is None:
        return None, f"no peak is known for the device '{device}'"
    rates: dict[str, tuple[float | None, str]] = {
        "fp16": (found.half, "FP16 Tensor Core"),
        "bf16": (found.half if found.bf16 else None, "BF16 Tensor Core"),
        "fp32": (found.fp32, "FP32, not TF32"),
        "fp64": (found.fp64, found.fp64_units),
    }
    rate, units = rates.get(precision, (None, ""))
    if rate is None:
        return None, f"no {precision} peak is known for the device '{device}'"
    return Peak(rate, precision, f"NVIDIA {found.datasheet}: {found.name}, {units}, dense"), None
