"""Compile every Triton kernel without a GPU, and say what each needs of a multiprocessor.

    python -m suite.kernels.ahead_of_time [--architectures 80 90] [--out FILE]

Triton brings the assembler, so no CUDA toolkit is needed. One line of CSV a kernel, data type and architecture:
registers and stack of a thread, shared memory and threads of a block, how many threads a multiprocessor holds at once,
and what bounds them. The committed table is `compiled.csv`.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

ARCHITECTURES = (80, 90)
TYPES = ("bf16", "fp16", "fp32")
HIDDEN, SEQUENCE = 4096, 2048  # the row that norms and softmaxes hold

# kernel -> its arguments in order, T being the type that is computed on, and its constants but ACC
_ROW, _STREAM = {"BLOCK": HIDDEN}, {"BLOCK": 1024}
_ADAM = "*fp32 *fp32 *fp32 *fp32 i64 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32"
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "layer_norm_triton.forward_kernel": ("*T *T *T *T *T *T *fp32 *fp32 i32 fp32", {"RESIDUAL": False, **_ROW}),
    "layer_norm_triton.backward_kernel": (
        "*T *T *fp32 *fp32 *T *T *T *fp32 *fp32 i32 i32",
        {"RESIDUAL": False, **_ROW},
    ),
    "layer_norm_triton.forward_kernel+residual": ("*T *T *T *T *T *T *fp32 *fp32 i32 fp32", {"RESIDUAL": True, **_ROW}),
    "layer_norm_triton.backward_kernel+residual": (
        "*T *T *fp32 *fp32 *T *T *T *fp32 *fp32 i32 i32",
        {"RESIDUAL": True, **_ROW},
    ),
    "bias_gelu_triton.forward_kernel": ("*T *T *T i32", _STREAM),
    "bias_gelu_triton.backward_kernel": ("*T *T *T *T *fp32 i32 i32", _STREAM),
    "dropout_mask_triton.drop_kernel": ("*T *T *i32 i32 i32 i32 fp32", _STREAM),
    "bias_dropout_add_triton.forward_kernel": (
        "*T *T *T *T *i32 i32 i32 i32 i32 fp32",
        {"DROP": True, **_STREAM},
    ),
    "bias_dropout_add_triton.backward_kernel": (
        "*T *T *fp32 *i32 i32 i32 i32 i32 i32 fp32",
        {"DROP": True, **_STREAM},
    ),
    "softmax_triton.forward_kernel+causal": (
        "*T *T *T i32 i32 i32 fp32",
        {"CAUSAL": True, "BLOCK": SEQUENCE},
    ),
    "softmax_triton.forward_kernel+mask": (
        "*T *u8 *T i32 i32 i32 fp32",
        {"CAUSAL": False, "BLOCK": SEQUENCE},
    ),
    "softmax_triton.backward_kernel": ("*T *T *T i32 i32 fp32", {"CAUSAL": True, "BLOCK": SEQUENCE}),
    "cross_entropy_triton.forward_kernel": ("*T *i64 *fp32 *fp32 *fp32 i32 i32 i32", {"BLOCK": 2048}),
    "cross_entropy_triton.backward_kernel": ("*T *i64 *fp32 *fp32 *fp32 *T i32 i32 i32", {"BLOCK": 2048}),
    "embedding_gradient_triton.add_kernel": ("*fp32 *i64 *i64 *T i32 i32", _STREAM),
    "flat_triton.adam_kernel": (_ADAM, _STREAM),
    "flat_triton.square_kernel": ("*fp32 *fp64 i64", _STREAM),
    "flat_triton.multiply_kernel": ("*fp32 i64 fp32", _STREAM),
}


@dataclass(frozen=True)
class Compiled:
    """What one compiled kernel needs."""

    kernel: str
    type: str
    architecture: int
    registers: int
    stack_bytes: int  # of a thread; spilled registers are there
    shared_bytes: int
    threads: int
    threads_at_once: int  # of a multiprocessor
    bound: str  # registers, shared memory or threads


def compile_all(architectures: tuple[int, ...] = ARCHITECTURES, types: tuple[str, ...] = TYPES) -> Iterator[Compiled]:
    """Every kernel, in every one of the types that its arguments leave open."""
    for name, (arguments, constants) in KERNELS.items():
        for number_type in types if "T" in arguments else ("fp32",):
            for architecture in architectures:
                yield compiled(name, arguments, constants, number_type, architecture)


def compiled(name: str, arguments: str, constants: dict[str, Any], number_type: str, architecture: int) -> Compiled:
    """One kernel for one architecture, such as 90."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from suite.kernels.triton_types import warps_for

    module, _, function = name.partition("+")[0].partition(".")
    kernel = getattr(import_module(f"suite.kernels.{module}"), function)
    constants = {**constants, "ACC": tl.float32}
    types = iter(arguments.replace("T", number_type).split())
    signature = {argument: "constexpr" if argument in constants else next(types) for argument in kernel.arg_names}
    options = {"num_warps": warps_for(constants["BLOCK"])}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (argument, of) in enumerate(signature.items())
        if of.startswith("*") or argument in ("width", "size")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    done = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    registers, stack = _resources(done.asm["cubin"])
    threads, shared = 32 * options["num_warps"], done.metadata.shared
    at_once, bound = _occupancy(registers, shared, threads, architecture)
    return Compiled(name, number_type, architecture, registers, stack, shared, threads, at_once, bound)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread; what a kernel spills is on the stack."""
    from triton.knobs import nvidia

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


# Of a multiprocessor: registers, threads, blocks, and bytes of shared memory that blocks can have (CUDA C++ Programming
# Guide, table of technical specifications per compute capability).
_REGISTERS, _THREADS, _BLOCKS = 65536, 2048, 32
_SHARED = {80: 164 << 10, 90: 228 << 10}
_RESERVED_SHARED = 1 << 10  # of each block
_REGISTERS_AT_A_TIME = 8  # of a thread: a warp gets 256 together


def _occupancy(registers: int, shared: int, threads: int, architecture: int) -> tuple[int, str]:
    """Threads that a multiprocessor holds at once, and what bounds them."""
    held = -(-registers // _REGISTERS_AT_A_TIME) * _REGISTERS_AT_A_TIME
    blocks = {
        "threads": min(_BLOCKS, _THREADS // threads),
        "registers": _REGISTERS // (held * threads),
        "shared memory": _SHARED[architecture] // (shared + _RESERVED_SHARED),
    }
    bound = min(blocks, key=lambda name: blocks[name])
    return blocks[bound] * threads, bound


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", type=int, nargs="+", default=ARCHITECTURES, choices=ARCHITECTURES)
    parser.add_argument("--out", type=Path, help="a file; standard output where left out")
    asked = parser.parse_args()
    with asked.out.open("w", newline="") if asked.out else sys.stdout as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(field.name for field in fields(Compiled))
        for one in compile_all(tuple(asked.architectures)):
            writer.writerow(astuple(one))


if __name__ == "__main__":
    main()
