"""A checkpoint folder as far as it can be read without torch: which checkpoints are whole, and of which model."""

import json
from pathlib import Path
from typing import Any

from suite.experiment.errors import shown
from suite.experiment.point import Model

PREFIX = "iteration-"
STATE_FILE = "training.json"
_NOT_STORED = {"name", "dropout"}  # a label, and a choice of the training that may change between runs


def whole_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints in a folder, the oldest first."""
    names = sorted(folder.glob(f"{PREFIX}*")) if folder.is_dir() else []
    return [path for path in names if path.suffix == "" and (path / STATE_FILE).exists()]


def model_fields(model: Model) -> dict[str, Any]:
    """What a checkpoint keeps of its model: the fields that say what its tensors mean."""
    return model.model_dump(mode="json", exclude=_NOT_STORED)


def other_model(checkpoint: Path, model: Model) -> list[str]:
    """Why a whole checkpoint is not one of this model: one sentence for each field that differs."""
    try:
        stored = json.loads((checkpoint / STATE_FILE).read_text())["model"]
    except (ValueError, KeyError, TypeError):
        return [f"checkpoint.path: {checkpoint / STATE_FILE} does not say of which model it is; another would work"]
    return [
        f"model.{field}={shown(value)}: the checkpoint {checkpoint} has {shown(stored.get(field))}; "
        f"model.{field}={shown(stored.get(field))} would work"
        for field, value in model_fields(model).items()
        if stored.get(field) != value
    ]
