"""The GPT from torch's own parts, beside which the engine is timed, trains as the suite does."""

import pytest
from benchmarks.engine.peer_step import PeerStep, Recipe
from benchmarks.engine.setting import point
from layouts import training_step
from ranks import run_ranks

SHAPE = {"layers": 4, "hidden_size": 16, "heads": 4, "vocab_size": 256, "seq_length": 12, "dropout": 0.0}
STEPS = 3  # the first whose loss depends on clipping, since AdamW's first update does not

RECIPES = {  # by layout
    (1, 1, 1): [Recipe()],
    (1, 2, 1): [
        Recipe("1f1b", (3, 1)),
        Recipe("interleaved", (1, 1.5, 0.5, 1)),
        Recipe("interleaved-zb", (1, 1, 1, 1)),
        Recipe("zb-v", (0.5, 1.5, 1, 1)),
    ],
    (2, 1, 1): [Recipe()],
    (1, 1, 2): [Recipe()],
    (1, 2, 2): [Recipe("1f1b", (3, 1)), Recipe("interleaved", (1, 1, 1, 1))],
    (2, 2, 2): [Recipe("1f1b", (2.5, 1.5), sequence=True)],
}


def of_layout(layout, microbatch):
    """The tiny point, learning fast and clipped, so that a wrong gradient shows in the next loss."""
    at = point(layout, microbatch, shape=SHAPE)
    return at.model_copy(
        update={"training": at.training.model_copy(update={"learning_rate": 0.01, "gradient_clip": 0.1})}
    )


def of_suite():
    step = training_step(of_layout((1, 1, 1), 2))
    return [step.run(k).loss for k in range(STEPS)]


def of_peer(at, recipes):
    found = []
    for recipe in recipes:
        step = PeerStep(at, recipe)
        found.append([step.run(k) for k in range(STEPS)])
    return found


@pytest.fixture(scope="module")
def suites():
    (losses,) = run_ranks(1, of_suite)
    return losses


@pytest.mark.processes
@pytest.mark.parametrize("layout", RECIPES, ids="t{0[0]}p{0[1]}d{0[2]}".format)
def test_the_peer_has_the_suites_losses(suites, layout):
    at = of_layout(layout, 2 if layout[1] == 1 else 1)
    for losses in run_ranks(at.parallel.ranks, of_peer, at, RECIPES[layout]):
        for recipe, found in zip(RECIPES[layout], losses, strict=True):
            assert found == pytest.approx(suites, rel=1e-5), recipe
