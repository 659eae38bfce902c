"""The split backward: what is held between B and W, what each of them adds, and that it is the whole backward's."""

import weakref
from collections import Counter

import pytest
import torch
from layouts import point, training_step
from torch.autograd.graph import saved_tensors_hooks

from suite.experiment.point import Point
from suite.kernels.registry import OPERATORS
from suite.measure.memory import LiveTensorBytes
from suite.parallel.parameters import ModelParameter
from suite.pipeline.generators import generate
from suite.pipeline.program import Action
from suite.pipeline.proof import prove
from suite.training.evaluation import evaluate
from suite.training.step import TrainingStep

STAGES = (FIRST, MIDDLE, LAST) = range(3)
SPLIT = {"name": "interleaved-zb", "chunks": 3, "split": [2, 2, 2]}  # on one rank: with embedding, layers, with head
WHOLE = {**SPLIT, "name": "interleaved"}
LAYERS_EACH, PADDED_VOCAB = 2, 128


def of(schedule: dict = SPLIT, **sections) -> Point:
    """Three stages on one rank and two microbatches of two sequences, long enough to make s*s matrices the largest."""
    model = {"layers": 6, "hidden_size": 16, "heads": 4, "seq_length": 40, **sections.pop("model", {})}
    return point((1, 1, 1), schedule, 4, 2, model=model, **sections)


class Worked:
    """One rank's worker, action by action, on random messages."""

    def __init__(self, at: Point) -> None:
        self.at, self.step = at, training_step(at)
        self.worker, self.deferred = self.step.worker, self.step.worker.deferred
        microbatches = [self.step.batches.microbatch(0, i) for i in range(at.microbatches)]
        tokens = at.training.global_batch * at.model.seq_length
        self.worker.begin(microbatches.__getitem__, self.step.loss_scale.value / tokens)
        live = [*self.step.live_tensors(), *(t for m in microbatches for t in (m.tokens, m.targets))]
        self.memory = LiveTensorBytes(live)
        self.before = self.memory.live

    def run(self, kind: str, stage: int, microbatch: int = 0) -> int:
        """One action; the bytes held after it beyond values, gradients, tokens and the loss."""
        takes_message = stage != FIRST if kind == "F" else stage != LAST and kind != "W"
        with self.memory:
            value = self._message(stage, microbatch) if takes_message else None
            self.worker.run(Action(kind, stage, microbatch), value, final=False)
            del value
            return self.memory.live - self.before - (0 if self.worker.loss is None else self.worker.loss.nbytes)

    def _message(self, stage: int, microbatch: int) -> torch.Tensor:
        model, generator = self.at.model, torch.Generator().manual_seed(7 * stage + microbatch)
        shape = (model.seq_length, self.at.training.microbatch, model.hidden_size)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(next(self.step.parameters()).dtype)

    def main_gradients(self, stage: int) -> dict[str, torch.Tensor]:
        """The gradients of the stage's parameters as they are now."""
        parameters = self.step.stages[stage, 0].parameters()
        return {p.spec.name: p.main_grad.clone() for p in parameters if isinstance(p, ModelParameter)}


def needed_by_weights(at: Point, stage: int) -> int:
    """Bytes of the inputs of norms and products and of the gradients of their outputs, one microbatch of one stage.

    Widths: a norm h in and h out; products h in and 3h out (query, key, value), h and h, h and f, f and h. A bias's
    gradient is computed from what its product's weight needs.
    """
    h, f = at.model.hidden_size, at.model.ffn_hidden_size
    width = LAYERS_EACH * (2 * (h + h) + (h + 3 * h) + (h + h) + (h + f) + (f + h))
    width += {FIRST: h, MIDDLE: 0, LAST: (h + h) + (h + PADDED_VOCAB)}[stage]  # embeddings: output; head: norm, product
    elements = at.model.seq_length * at.training.microbatch * width
    return elements * (8 if at.training.precision == "fp64" else 2)


@pytest.mark.parametrize("kernels", ["torch", "reference"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_between_b_and_w_exactly_what_weight_gradients_need_is_held(kernels, dropout, recompute, precision):
    training = {"recompute": recompute, "precision": precision}
    at = of(model={"dropout": dropout}, training=training, kernels=dict.fromkeys(OPERATORS, kernels))
    work = Worked(at)
    for stage in STAGES:
        held = work.run("F", stage)
        if kernels == "reference" and recompute == "none":  # attention's matrices are there, and then they are not
            s, b, heads = at.model.seq_length, at.training.microbatch, at.model.heads
            assert held > LAYERS_EACH * b * heads * s * s * (8 if precision == "fp64" else 2)
        assert work.run("B", stage) == needed_by_weights(at, stage)
        assert work.run("W", stage) == 0


def test_every_w_lets_go_of_its_own_microbatch():
    work = Worked(of())
    one = needed_by_weights(work.at, MIDDLE)
    for microbatch in range(2):
        work.run("F", MIDDLE, microbatch)
    work.run("B", MIDDLE, 0)
    assert work.run("B", MIDDLE, 1) == 2 * one
    assert work.run("W", MIDDLE, 1) == one
    assert work.run("W", MIDDLE, 0) == 0


@pytest.mark.parametrize("kernels", ["torch", "reference"])
def test_a_whole_backward_of_a_split_program_peaks_no_higher_than_a_plain_programs(kernels):
    plain, split = (Worked(of(schedule, kernels=dict.fromkeys(OPERATORS, kernels))) for schedule in (WHOLE, SPLIT))
    for stage in STAGES:
        peaks = []
        for work in (plain, split):
            held = work.run("F", stage)
            work.memory.peak = 0
            assert work.run("BW", stage) == 0
            peaks.append(work.memory.peak - work.before)
            assert peaks[-1] > held
        assert peaks[1] <= peaks[0]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_after_b_nothing_of_the_graph_is_alive(recompute):
    work, saved, nodes = Worked(of(training={"recompute": recompute})), [], []

    class Saved:
        """A tensor that the graph saved for its backward pass."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    def pack(tensor: torch.Tensor) -> Saved:
        kept = Saved(tensor)
        saved.append(weakref.ref(kept))
        return kept

    for stage in STAGES:
        with saved_tensors_hooks(pack, lambda kept: kept.tensor):
            work.run("F", stage)
            nodes += marked_nodes(work.worker.live[Action("F", stage, 0)].output.node)
        assert all(node() is not None for node in nodes[-2:])
        with saved_tensors_hooks(pack, lambda kept: kept.tensor):  # recomputation builds its graph here
            work.run("B", stage)
        assert work.deferred.kept
        assert not [ref for ref in saved if ref() is not None]
        assert not [node for node in nodes if node() is not None]
    assert len(saved) > 50


def marked_nodes(root) -> list[weakref.ref]:
    """References that die with the nodes of the graph: Python's own wrappers of them come and go."""

    class Mark:
        pass

    marks, seen, todo = [], set(), [root]
    while todo:
        node = todo.pop()
        if node in seen or node.name() == "torch::autograd::AccumulateGrad":
            continue
        seen.add(node)
        node.metadata["mark"] = Mark()
        marks.append(weakref.ref(node.metadata["mark"]))
        todo += [following for following, _ in node.next_functions if following is not None]
    return marks


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_b_adds_nothing_to_weights_and_w_adds_every_gradient_once(recompute):
    work = Worked(of(training={"recompute": recompute}))
    added = Counter()
    work.deferred.accumulated = lambda parameter: added.update([parameter.spec.name])
    for stage in STAGES:
        added.clear()
        before = work.main_gradients(stage)
        work.run("F", stage)
        work.run("B", stage)
        assert not added
        for name, gradient in work.main_gradients(stage).items():
            assert torch.equal(gradient, before[name]), name
        work.run("W", stage)
        assert added == Counter(before.keys())
        for name, gradient in work.main_gradients(stage).items():
            assert not torch.equal(gradient, before[name]), name
        with pytest.raises(KeyError):
            work.run("W", stage)


def gradients(work: Worked, *kinds: str) -> list[dict[str, torch.Tensor]]:
    """Every stage's gradients after these actions on both microbatches."""
    found = []
    for stage in STAGES:
        for flat in work.step.flats:
            flat.gradients.zero_()
        for kind in kinds:
            for microbatch in range(2):
                work.run(kind, stage, microbatch)
        found.append(work.main_gradients(stage))
    return found


@pytest.mark.parametrize(
    ("kernels", "precision", "roundoff"),
    [
        ("torch", "fp64", 2.0**-53),
        ("torch", "bf16", 2.0**-8),
        ("torch", "fp16", 2.0**-11),
        ("reference", "fp64", 2.0**-53),
        ("reference", "bf16", 2.0**-8),
    ],
)
def test_b_and_w_together_give_the_whole_backwards_gradients_to_rounding(kernels, precision, roundoff):
    sections = {"training": {"precision": precision}, "kernels": dict.fromkeys(OPERATORS, kernels)}
    plain = gradients(Worked(of(WHOLE, **sections)), "F", "BW")
    parts = gradients(Worked(of(**sections)), "F", "B", "W")
    at_once = gradients(Worked(of(**sections)), "F", "BW")  # a whole backward among split ones
    for whole, *others in zip(plain, parts, at_once, strict=True):
        for other in others:
            assert whole.keys() == other.keys()
            for name, expected in whole.items():
                assert other[name].dtype == torch.promote_types(expected.dtype, torch.float32)
                error = torch.linalg.vector_norm(other[name] - expected)
                assert error <= 8 * roundoff * torch.linalg.vector_norm(expected), name


def evaluated(step: TrainingStep, at: Point) -> float:
    return evaluate(step, prove(generate(at.schedule, 1, at.microbatches)).lowered, batches=2)


def test_evaluation_after_split_training_is_that_after_whole_training_and_disturbs_nothing():
    losses = {}
    for name, schedule in (("split", SPLIT), ("whole", WHOLE)):
        step = training_step(at := of(schedule))
        before = evaluated(step, at)
        step.gradients(0)
        assert evaluated(step, at) == before, "nothing was updated"
        trained = []
        for k in range(2):
            trained.append(step.run(k).loss)
            trained.append(evaluated(step, at))
        losses[name] = [before, *trained]
        assert not step.worker.live
    assert losses["split"] == pytest.approx(losses["whole"], rel=1e-13)
    assert len(set(losses["split"])) == 5
