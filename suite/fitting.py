"""The constants of `slurm/` that are fitted on published rows, fitted again: `python -m suite.fitting`.

Every group of constants is fitted on the rows that it names and on no others: least squares of the logarithms of
predicted over measured with Tukey's weights, so that rows which something else is wrong with (some are half as fast as
their neighbours) do not decide. What is printed belongs into the files of `slurm/`, whose `fitted` keys say the rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from suite.experiment.hardware import Hardware
from suite.records.published import PublishedRow, published
from suite.report.score import Case, cases, error_of
from suite.simulate.iteration import estimate

_STEP = 0.03  # relative, of a derivative
_LARGEST = 0.3  # relative, of one round's change of a constant
_ROUNDS = 10
_OUTLIER = 0.12  # an error that has no weight
_RIDGE = 1e-3


@dataclass(frozen=True)
class Group:
    """Constants that are fitted together: by name where they start, and the rows."""

    constants: dict[str, float]
    rows: Callable[[], Iterable[PublishedRow]]


def _table_1() -> list[PublishedRow]:
    return [row for row in published("narayanan2021") if row.table == "Table 1"]


def _readme_2020() -> list[PublishedRow]:
    return [row for row in published("megatron2020") if (row.gpu or "").startswith("A100")]


GROUPS = (
    Group(  # what the other groups rest on
        {
            "device.gemm_efficiency": 0.77,
            "device.attention_efficiency": 0.48,
            "link.collective": 2.2e-4,
            "network.whole": 0.88,
            "network.alone": 0.49,
            "network.mixed": 0.23,
            "software.overlap_share": 0.84,
            "software.slowdown:Megatron-DeepSpeed (vTrain)": 0.94,
        },
        lambda: [*_table_1(), *_readme_2020(), *published("vtrain_multi")],
    ),
    Group(
        {"software.layer_seconds:Megatron-DeepSpeed": 8e-3},
        lambda: [*published("bigscience2022"), *published("mtnlg2022")],
    ),
    Group(
        {"software.slowdown:DeepSpeed ZeRO-3 2021": 1.4},
        lambda: [row for row in published("narayanan2021") if row.table == "Table 2" and row.zero_stage == 3],
    ),
    Group({"software.slowdown:PyTorch FSDP with flash attention": 1.07}, lambda: published("mosaicml_a100")),
    Group({"software.slowdown:PyTorch FSDP": 1.16}, lambda: published("fsdp_a100")),
)


def with_constants(hardware: Hardware, constants: dict[str, float]) -> Hardware:
    """The hardware with other values; a constant of a software stack concerns that stack alone, if it is named."""
    for name, value in constants.items():
        part, _, field = name.partition(".")
        field, _, stack = field.partition(":")
        if stack and stack != hardware.software.name:
            continue
        for which in ("node", "network") if part == "link" else (part,):
            changed = getattr(hardware, which).model_copy(update={field: value})
            hardware = hardware.model_copy(update={which: changed})
    return hardware


def fit(group: Group, report: Callable[[str], None]) -> dict[str, float]:
    """The group's constants by Gauss-Newton rounds on their logarithms."""
    found = cases(group.rows())[0]
    names, values = list(group.constants), np.array(list(group.constants.values()))
    for _ in range(_ROUNDS):
        errors = _errors(found, names, values)
        moved = [
            _errors(found, names, values * np.where(np.arange(len(values)) == at, 1 + _STEP, 1))
            for at in range(len(values))
        ]
        slopes = (np.array(moved) - errors).T / np.log1p(_STEP)
        weights = np.where(np.abs(errors) < _OUTLIER, 1 - (errors / _OUTLIER) ** 2, 0.0)
        left = np.vstack([slopes * weights[:, None], _RIDGE * np.eye(len(values))])
        right = np.concatenate([-errors * weights, np.zeros(len(values))])
        change = np.linalg.lstsq(left, right, rcond=None)[0]
        values = values * np.exp(np.clip(change, -_LARGEST, _LARGEST))
        report(f"  {len(found)} rows, mean error {100 * np.abs(errors).mean():.2f} %")
    return dict(zip(names, values.tolist(), strict=True))


def _errors(found: Sequence[Case], names: Sequence[str], values: np.ndarray) -> np.ndarray:
    constants = dict(zip(names, values.tolist(), strict=True))
    hardware = [with_constants(case.placed.hardware, constants) for case in found]
    return np.log1p(
        [error_of(case, estimate(case.placed.point, one).seconds) for case, one in zip(found, hardware, strict=True)]
    )


def main() -> None:
    """Fit every group and print its constants."""
    for group in GROUPS:
        for name, value in fit(group, print).items():
            print(f"{name}: {value:.4g}")


if __name__ == "__main__":
    main()
