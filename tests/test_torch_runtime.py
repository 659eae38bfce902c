"""Torch's own pipeline runtime executes our exported schedules on our model, with our engine's losses and gradients."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from layouts import point, training_step, whole_gradients
from ranks import run_ranks
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from suite.experiment.point import Point
from suite.kernels.registry import select
from suite.model.dropout import Dropout
from suite.model.gpt import Build, Microbatch, Stage, build_stages
from suite.parallel.parameters import ModelParameter
from suite.parallel.tensor_parallel import TensorRanks
from suite.parallel.topology import ALONE
from suite.parallel.vocab_parallel import vocab_cross_entropy
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove
from suite.pipeline.torch_csv import as_torch_csv, as_torch_csv_comms
from suite.training.data import Batches

RANKS, STEPS, TOLERANCE = 2, 3, 1e-10
SCHEDULES = {"1f1b": 1, "interleaved": 2, "zb-v": 2, "dualpipe-v": 2}  # chunks per rank
FORMS = {
    "compute_only": as_torch_csv,
    "compute_comms": lambda schedule: as_torch_csv_comms(prove(schedule).lowered),
}
CASES = [(name, form) for name in SCHEDULES for form in FORMS]

Gradients = dict[str, torch.Tensor]  # of the parameters of one rank, by name


def at(name: str) -> Point:
    return point((1, RANKS, 1), {"name": name, "chunks": SCHEDULES[name]}, model={"dropout": 0.0})


class TorchStage(nn.Module):
    """A stage as torch's runtime calls it: the first takes tokens [b, s], the last returns logits [b, s, V]."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = Dropout(0.0, 0, 0, ())
        if self.stage.embedding is not None:
            tokens = x.t()
            x = self.stage.hidden(None, Microbatch(tokens, tokens, plain))
        else:
            x = self.stage.hidden(x, Microbatch(x, x, plain))
        return x if self.stage.head is None else self.stage.head.logits(x).transpose(0, 1)


def by_our_engine(here: Point) -> tuple[list[float], list[Gradients], Gradients]:
    """The loss and this rank's gradients of every step, and its parameters after the last."""
    step = training_step(here)
    losses, gradients = [], []
    for k in range(STEPS):
        losses.append(step.run(k).loss)
        gradients.append({p.spec.name: g.clone() for p, g in whole_gradients(step)})
    return losses, gradients, {p.spec.name: p.detach().clone() for p in step.parameters()}


def by_torchs_runtime(here: Point, path: str, form: str) -> tuple[list[float], list[Gradients], Gradients]:
    """The same by `_PipelineScheduleRuntime`; the loss is 0 where the last stage is elsewhere."""
    rank, placement = dist.get_rank(), generate(here.schedule, RANKS, here.microbatches).placement[0]
    build = Build(here.model, TensorRanks(ALONE), here.training, torch.float64, select("auto"))
    device = torch.device("cpu")
    modules = build_stages(here, [(stage, 0) for stage, host in enumerate(placement) if host == rank], build, device)
    stages = [PipelineStage(TorchStage(m), stage, len(placement), device) for (stage, _), m in modules.items()]
    parameters = {p.spec.name: p for m in modules.values() for p in m.parameters() if isinstance(p, ModelParameter)}
    batch, tokens = here.training.global_batch, here.training.global_batch * here.model.seq_length

    def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        summed = vocab_cross_entropy(
            logits.transpose(0, 1), targets.t(), here.model.vocab_size, ALONE, build.kernels.cross_entropy
        )
        return summed / tokens

    # The loss is divided by the tokens of the global batch, so the gradients of the microbatches only add up.
    runtime = torch_schedules._PipelineScheduleRuntime(stages, here.microbatches, loss_fn=loss_of, scale_grads=False)
    runtime._load_csv(path, format=form)
    source, losses, gradients = Batches(here, 0, device).source, [], []
    for k in range(STEPS):
        rows = torch.stack([source.sequence(k * batch + number) for number in range(batch)])
        found: list[torch.Tensor] = []
        inputs = (rows[:, :-1],) if placement[0] == rank else ()
        runtime.step(*inputs, target=rows[:, 1:] if placement[-1] == rank else None, losses=found)
        if placement[0] != placement[-1]:
            dist.all_reduce(parameters["embedding.word.weight"].grad)  # both ends have a copy of the tied weight
        losses.append(sum(loss.item() for loss in found))
        gradients.append({name: p.grad.clone() for name, p in parameters.items()})
        with torch.no_grad():
            for p in parameters.values():
                p -= here.training.learning_rate * p.grad
                p.grad = None
    return losses, gradients, {name: p.detach().clone() for name, p in parameters.items()}


def everything_here(paths: dict[tuple[str, str], str]) -> dict[Any, Any]:
    ours = {name: by_our_engine(at(name)) for name in SCHEDULES}
    theirs = {(name, form): by_torchs_runtime(at(name), path, form) for (name, form), path in paths.items()}
    return {key: as_numbers(value) for key, value in (ours | theirs).items()}


def as_numbers(found: tuple[list[float], list[Gradients], Gradients]) -> Any:
    losses, gradients, parameters = found
    return losses, [{name: g.numpy() for name, g in one.items()} for one in (*gradients, parameters)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By rank: what our engine did by schedule, and what torch's runtime did by schedule and form."""
    folder, paths = tmp_path_factory.mktemp("exported"), {}
    for name, form in CASES:
        path = folder / f"{name}.{form}.csv"
        path.write_text(FORMS[form](generate(at(name).schedule, RANKS, at(name).microbatches)))
        paths[name, form] = str(path)
    return run_ranks(RANKS, everything_here, paths)


@pytest.mark.processes
@pytest.mark.parametrize(("name", "form"), CASES)
def test_torchs_runtime_has_our_engines_losses_and_gradients(runs, name, form):
    seen = set()
    torchs = [sum(losses) for losses in zip(*(rank[name, form][0] for rank in runs), strict=True)]
    for rank in runs:
        assert torchs == pytest.approx(rank[name][0], rel=TOLERANCE)
        for ours, theirs in zip(rank[name][1], rank[name, form][1], strict=True):
            assert ours.keys() == theirs.keys()
            for parameter, values in ours.items():
                assert abs(values).max() > 0, parameter
                assert abs(values - theirs[parameter]).max() <= TOLERANCE * abs(values).max(), parameter
        seen |= set(rank[name][1][0])
    assert len(seen) == 2 + 12 * at(name).model.layers + 2
    assert len(set(runs[0][name][0])) == STEPS, "three steps on other tokens and weights have three losses"
