"""`make bench-engine`: the suite's engine beside torch's own parts, in turns, on the machine that this runs on.

Every iteration becomes a line of `<begun>.jsonl`, after one that says what it was measured on; the table is printed and
kept beside it. Ends with 1 where a gate does not hold.
"""

import argparse
import dataclasses
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from benchmarks.engine.contenders import Match, has_compiler, matches, peers_step_alone
from benchmarks.engine.results import Result
from benchmarks.engine.setting import BATCH, GPT, point
from benchmarks.engine.table import table
from benchmarks.engine.turns import gemm_peaks, gpu_name, losses, turns

from suite.measure.provenance import libraries, revision
from suite.regression.calibration import machine

WARMUP = 2
LEAST_PAIRS = 8  # fewer have hardly an interval


def main() -> int:
    """Measure the matches asked for."""
    parser = argparse.ArgumentParser(prog="make bench-engine", description=__doc__)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=f"of {', '.join(matches())}; all where left out")
    parser.add_argument("--pairs", type=int, default=10, help=f"rounds, {LEAST_PAIRS} or more (10)")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/engine"), help="folder (.benchmarks/engine)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="time only contenders in whose name it is found")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="cuda: a single process on one GPU")
    given = parser.parse_args()
    known = matches(given.device)
    if unknown := [name for name in given.layouts if name not in known]:
        parser.error(f"LAYOUTS: there is no {unknown[0]!r}; there are {', '.join(known)}")
    if given.pairs < LEAST_PAIRS:
        parser.error(f"PAIRS={given.pairs}: at least {LEAST_PAIRS} are needed; PAIRS={LEAST_PAIRS} would work")
    wanted = [known[name].only(given.only) for name in given.layouts or known]
    if empty := [match.name for match in wanted if not (match.suite and match.torch)]:
        parser.error(f"ONLY={given.only}: {empty[0]} has no contender of that name on each side; ONLY=. would work")
    if not has_compiler():
        print("torch.compile is left out: it needs a C++ compiler, g++ or what CXX names")
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    results = _measured(wanted, given.pairs, file, given.device)
    text = table(results)
    file.with_suffix(".md").write_text(text)
    print(f"\n{text}\nkept in {file} and {file.with_suffix('.md').name}")
    return 0 if all(gate.holds for result in results for gate in result.gates) else 1


def _measured(wanted: list[Match], pairs: int, file: Path, device: str) -> list[Result]:
    """All turns, each written down at once."""
    ranks = max(match.bound.ranks for match in wanted)
    peaks = gemm_peaks(ranks, device)
    where = machine() if device == "cpu" else f"{gpu_name()}, torch {libraries()['torch']}"
    print(f"{where}; GEMM peak of a rank {mean(peaks) / 1e9:.0f} GFLOP/s", flush=True)
    single = _single_process(file.with_name("single.json"), WARMUP + pairs)
    setting = {
        "machine": where,
        "revision": revision(),
        "libraries": libraries(),
        "model": dict(GPT),
        "batch": BATCH,
        "warmup": WARMUP,
        "gemm_flops": peaks,
        "losses": single,
    }
    results = []
    with file.open("x") as lines:
        print(json.dumps(setting), file=lines)
        for match in wanted:
            taken = []
            for turn in turns(match.entries, WARMUP, pairs):
                taken.append(turn)
                print(json.dumps({"match": match.name, **dataclasses.asdict(turn)}), file=lines, flush=True)
                print(f"{match.name} {turn.round:3} {turn.seconds:7.3f} s  {turn.entry}", flush=True)
            results.append(Result(match, taken, mean(peaks), single, WARMUP))
    return results


def _single_process(file: Path, iterations: int) -> list[float]:
    """The losses of one process on the whole batch, kept for the next time: they do not depend on the engine."""
    setting = {"model": dict(GPT), "batch": BATCH, "libraries": libraries(), "iterations": iterations}
    kept = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("setting") != setting:
        kept = {"setting": setting, "losses": losses(peers_step_alone, (point((1, 1, 1), BATCH),), iterations)}
        file.write_text(json.dumps(kept))
    return kept["losses"]


if __name__ == "__main__":
    sys.exit(main())
