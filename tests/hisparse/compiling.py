"""Compiles every kernel for one device that is not here: `python compiling.py BACKEND ARCH WAVE ROW_BYTES`.

The sizes are those of GLM-5.2 with 96 requests of up to 128k tokens. Prints one JSON line for each kernel.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hot_kv import kernels, kernels_copy
from hot_kv.kernels_launch import Tuning
from hot_kv.state import HotShape
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

NARROW = {"inverse": "*i16", "order": "*i16", "victims": "*i16"}
WIDE = {"slot": "*i64", "stats": "*i64", "source": "*i64"}


def constants(shape: HotShape, tuning: Tuning) -> dict[str, int]:
    """What `kernels_launch` would pass."""
    return {
        "REGIONS": shape.regions,
        "SLOTS": shape.slots,
        "STRIDE": shape.stride,
        "TOPK": shape.topk,
        "MAX_LEN": shape.max_len,
        "PAGE": shape.page,
        "BINS": 1024,
        "BIN_SHIFT": 12,
        "BLOCK_K": 2048,
        "BLOCK_H": 4096,
        "BLOCK_T": 128,
        "FEW": tuning.few,
        "SORTED": shape.rows * shape.topk,
        "EARLY": tuning.early,
        "ROWS": tuning.copy_rows,
        "WORDS": shape.words,
        "BLOCK_W": 512 if shape.words > 256 else 256,
    }


def build(kernel: Any, threads: int, target: GPUTarget, shape: HotShape) -> dict[str, Any]:
    """Compile one kernel, pointers at multiples of 16 bytes as they are in the engine."""
    tuning = Tuning(wave=target.warp_size)
    known = constants(shape, tuning)
    names = kernel.arg_names
    pointers = [name.removesuffix("_ptr") for name in names]
    types = {**WIDE, **NARROW}
    signature = {
        name: "constexpr" if name.isupper() else types.get(short, "*i32") if name.endswith("_ptr") else "i32"
        for name, short in zip(names, pointers, strict=True)
    }
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={name: known[name] for name in names if name.isupper()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name.endswith("_ptr")},
    )
    made = compile(source, target=target, options={"num_warps": tuning.warps(threads)})
    binary = made.asm["cubin" if target.backend == "cuda" else "hsaco"]
    text = made.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    return {
        "kernel": kernel.__name__,
        "elf": binary[:4] == b"\x7fELF",
        "shared": made.metadata.shared,
        "threads": made.metadata.num_warps * target.warp_size,
        "wide_loads": text.count("ld.global.v4")
        + text.count("global_load_dwordx4")
        + text.count("buffer_load_dwordx4"),
    }


def main() -> None:
    backend, arch, wave, row_bytes = sys.argv[1:]
    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(wave))
    shape = HotShape(1, 96, 4096, 2048, max_len=131_072, row_bytes=int(row_bytes), rows=96)
    tuning = Tuning()
    for kernel, threads in (
        (kernels.resolve_kernel, tuning.resolve_threads),
        (kernels.sort_kernel, tuning.sort_threads),
        (kernels_copy.copy_kernel, tuning.copy_threads),
        (kernels_copy.newest_kernel, tuning.copy_threads),
    ):
        print(json.dumps(build(kernel, threads, target, shape)))


if __name__ == "__main__":
    main()
