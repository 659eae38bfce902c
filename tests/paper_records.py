"""An experiment like the paper's figure 12, and records of its points, for the tests of the paper's report."""

from suite.experiment.expansion import expand
from suite.experiment.spec import read_experiment
from suite.records.schema import Memory, Record
from suite.records.store import Store, read_stores
from suite.report.metrics import achieved
from suite.report.summary import launches_of, rows_of

FIGURE_12 = """
name: figure-12
title: Interleaved and default schedule
paper:
  figure: 12
  published: {source: narayanan2021, table: "Figure 12"}
  plot: {x: global_batch, series: [schedule], y: tflops_per_gpu, title: Interleaved or not}
  gaps: [the number of chunks is the released script's]
scales:
  paper:
    model: gpt-175b
    parallel: {tensor: 8, pipeline: 12, scatter_gather: true}
    training: {recompute: full, precision: fp16, global_batch: 12}
    sweep: {grid: {schedule: [1f1b, {name: interleaved, chunks: 4}], global_batch: [12, 24, 36, 48, 60]}}
  laptop:
    model: {layers: 16, hidden_size: 64, heads: 4, vocab_size: 256, seq_length: 32}
    parallel: {pipeline: 2}
    training: {global_batch: 4}
    sweep: {grid: {schedule: [1f1b, {name: interleaved, chunks: 4}], global_batch: [4, 8]}}
"""

# TFLOP/s of a rank at each point of figure 12, a little beside the printed ones.
RATES = {"1f1b": (83, 108, 122.4, 131, 135), "interleaved": (118, 133, 142, 145, 146)}
BREAKDOWN = {"gemm": 0.6, "attention": 0.1, "bubble": 0.3}


def experiment_of(folder, text=FIGURE_12, name="figure-12"):
    """The experiment of the text, read from a file."""
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return read_experiment(file)


def record_at(experiment, scale, point, seconds, source="simulated", **changes):
    """A record of the point whose iteration takes so long; a simulated one says what it spends its time on."""
    breakdown = {part: [share * seconds] for part, share in BREAKDOWN.items()}
    fields = {
        "experiment": experiment.name,
        "scale": scale,
        "point_id": point.id,
        "source": source,
        "point": point.model_dump(mode="json"),
        "status": "ok",
        "iterations": {"seconds": [seconds], "warmup": 0},
        "breakdown_seconds": breakdown if source == "simulated" else None,
        "oversubscribed": False,
        "environment": {"peak_flops_per_rank": 312e12, "peak_source": "A100 datasheet", "device": "A100"},
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T03:05:05+00:00",
    }
    return Record.model_validate(fields | changes)


def predicted_memory(verdict):
    """What a memory model said of a point."""
    return Memory(predicted_bytes=90 * 2**30, capacity_bytes=80 * 2**30, verdict=verdict, margin=0.1, rank=0, parts={})


def points_of(experiment, scale):
    """The points of a scale, in order, whatever cluster would run them."""
    return [planned.point for planned in expand(experiment, scale).points]


def simulated_figure_12(experiment):
    """A simulated record of every point at the scale of the paper, at `RATES`."""
    records = []
    for point in points_of(experiment, "paper"):
        rate = RATES[point.schedule.name][point.training.global_batch // 12 - 1]
        records.append(record_at(experiment, "paper", point, seconds_at(point, rate)))
    return records


def seconds_at(point, tflops):
    """The iteration time of a rate, by the paper's equation 3."""
    b, s, layers, h = point.training.global_batch, 2048, point.model.layers, point.model.hidden_size
    flops = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + 51200 / (16 * layers * h))
    return flops / point.parallel.ranks / tflops / 1e12


def stored(root, experiment, records):
    """The records as the rows of a report, by way of a store."""
    for record in records:
        Store(root).write(record, "abc1234")
    found, problems = read_stores([root], experiment.name)
    assert problems == []
    launches, unreadable = launches_of(found, achieved)
    assert unreadable == []
    return rows_of(launches)
