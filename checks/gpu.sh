#!/usr/bin/env bash
# What only a GPU can show, in under 5 minutes on one CUDA GPU, without a network:
#
#   1. every kernel's results against the references on the device
#   2. the device's copy bandwidth and every kernel's against it, forward and backward    -> results/kernels/<device>.json
#   3. iterations of the largest GPT that the time allows (1.7 billion parameters, bf16), with every set of kernels, with
#      HFU and MFU: records as every run leaves them, and a report                        -> results/runs/kernels/gpu
#   4. the engine beside plain torch and torch.compile, one process, in turns            -> results/kernels/engine-<device>
#
# PYTHON=... chooses the interpreter, RESULTS=... another folder than results. Without apex, or Triton (which needs a C
# compiler for its launchers), its parts are skipped, and that is said. The engine has no CUDA graphs and does not call
# torch.compile, so there are no such variants.
#
# Without a GPU, `checks/gpu.sh --dry-run` does on the processor what of it a processor can do: every command runs, at sizes
# that take a moment. Its figures mean nothing and go to a folder of their own.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
suite=("$PYTHON" -c "import sys; from suite.cli import main; sys.exit(main())")
started=$(date +%s)
skipped=()

if [ "${1:-}" = "--dry-run" ]; then
    RESULTS=${RESULTS:-$(mktemp -d)}
    device=cpu precision=fp32 scale=laptop
    more=(--rounds 1 --smallest)
    overrides=(model.layers=1 model.hidden_size=64 model.heads=4 model.vocab_size=256 measure.iterations=1 "kernels=[auto,reference]")
    skipped+=("all figures of a GPU (--dry-run)")
else
    RESULTS=${RESULTS:-results}
    device=cuda precision=bf16 scale=gpu
    more=(--rounds 7)
    overrides=()
    "$PYTHON" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "checks/gpu.sh: torch sees no CUDA GPU; --dry-run would work")'
fi
for set in triton apex; do
    why=$("$PYTHON" -c "from suite.kernels.registry import problem; print(problem('$set', '$device') or '')")
    [ -z "$why" ] || skipped+=("$set: $why")
done

name=$("$PYTHON" -c "import re, torch; print(re.sub(r'\W+', '-', torch.cuda.get_device_name() if '$device' == 'cuda' else 'dry-run').lower())")
echo "== $name, torch $("$PYTHON" -c 'import torch; print(torch.__version__)')"

echo "== parity on the device"
"$PYTHON" -m suite.kernels.parity --device "$device"

echo "== bandwidth of every kernel"
"$PYTHON" -m suite.kernels.benchmark --device "$device" --precision "$precision" "${more[@]}" --out "$RESULTS/kernels/$name.json"

echo "== full iterations"
status=0
"${suite[@]}" run kernels --scale "$scale" --fresh --results "$RESULTS/runs" "${overrides[@]}" || status=$?
[ "$status" -le 1 ] || exit "$status" # 1: some points failed or cannot run here, which their records say
"${suite[@]}" report kernels --results "$RESULTS/runs" --out "$RESULTS/kernels/report-$name"

if [ "$device" = cuda ]; then
    echo "== the engine beside torch's own parts"
    PYTHONPATH="$PWD/tests:$PYTHONPATH" "$PYTHON" -m benchmarks.engine single --device cuda --pairs 10 \
        --out "$RESULTS/kernels/engine-$name" || echo "ended with $?: a gate does not hold, see the table, or it failed"
else
    skipped+=("the engine beside torch's own parts, which 'make bench-engine LAYOUTS=single' times on a processor")
fi

echo "== done in $(($(date +%s) - started)) s"
for one in "${skipped[@]}"; do
    echo "skipped: $one"
done
