# `make demo` runs the main job, `make paper` simulates the paper and writes its page, `make test` runs the tests, `make
# test-slurm` those that need a SLURM, which it starts. All make their own environment in .venv and reuse it.

PYTHON := $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo paper calibrate-check test test-slurm slurm-start slurm-stop bench bench-compare bench-engine bench-growth lint format clean

demo: $(VENV)/.ready-run
	$(BIN)/suite run quickstart
	$(BIN)/suite report quickstart

paper: $(VENV)/.ready-run
	$(BIN)/suite run paper --on simulate || [ $$? -eq 1 ] # one point does not fit, as the paper says of it
	$(BIN)/suite report paper

# How well the simulator predicts this machine: measure it, run the same points for real and simulated, compare. Needs an
# idle machine, and five to ten minutes.
calibrate-check: $(VENV)/.ready-run
	$(BIN)/suite calibrate here
	$(BIN)/suite run calibration --cluster here --fresh
	$(BIN)/suite run calibration --cluster here --on simulate --fresh
	$(BIN)/suite report calibration

test: $(VENV)/.ready-test
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Micro and macro benchmarks. `bench` keeps them in .benchmarks; `bench-compare` compares with the last that were kept, and
# fails where the fastest round of one has become slower by more than the tolerance. Needs an idle machine.
BENCH_TOLERANCE ?= 25%
BENCHMARKS := tests/benchmarks -o python_files='bench_*.py' --benchmark-only --benchmark-max-time=3 --benchmark-sort=name \
	--benchmark-columns=min,median,iqr,rounds

bench: $(VENV)/.ready-test
	$(BIN)/pytest $(BENCHMARKS) --benchmark-autosave

bench-compare: $(VENV)/.ready-test
	$(BIN)/pytest $(BENCHMARKS) --benchmark-compare --benchmark-compare-fail=min:$(BENCH_TOLERANCE)

# The engine beside what torch's own parts reach on the same work, in turns: LAYOUTS="p2-m8 t2" PAIRS=8 ONLY="1f1b|t2" chooses.
# Needs an idle machine. Ends with an error where a gate does not hold.
PAIRS ?= 10
ONLY ?= .

bench-engine: $(VENV)/.ready-test
	PYTHONPATH=tests $(BIN)/python -m benchmarks.engine $(LAYOUTS) --pairs $(PAIRS) --only '$(ONLY)'

# What the engine takes of an action as ranks, microbatches and chunks grow. Needs an idle machine. Ends with an error where
# it is more than docs/performance.md asks for.
bench-growth: $(VENV)/.ready-test
	PYTHONPATH=tests $(BIN)/python -m benchmarks.engine.growth

# A SLURM on this machine, see slurm/dev-cluster.
slurm-start:
	@slurm/dev-cluster/start

slurm-stop:
	@slurm/dev-cluster/stop

# The cluster is stopped again if it was started for this.
test-slurm: $(VENV)/.ready-test
	@slurm/dev-cluster/status >/dev/null 2>&1 || trap slurm/dev-cluster/stop EXIT; \
	use=$$(slurm/dev-cluster/start) && eval "$$use" && $(BIN)/pytest -m slurm tests/slurm

lint: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The project is installed as a link to this checkout; a changed pyproject.toml installs again.
$(VENV)/.ready-run: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV), once; this takes a minute or two"
	@$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.ready-test: pyproject.toml | $(BIN)/python
	@echo "installing the tests' packages into $(VENV), once; this takes a minute or two"
	@$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.ready-run

$(VENV)/.ready-lint: pyproject.toml | $(BIN)/python
	@echo "installing the linters into $(VENV), once"
	@$(BIN)/pip install --quiet --editable '.[lint]'
	@touch $@ $(VENV)/.ready-run
