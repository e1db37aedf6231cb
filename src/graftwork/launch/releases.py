"""What differs between the engine versions that can be launched; each fact was read in the wheel that it is about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from packaging.version import InvalidVersion, Version

from graftwork.errors import UsageError
from graftwork.launch.flags import stored

HiSparseForm = Literal["none", "sglang", "attention-config", "connector"]
PATCH = "vllm/hisparse"


@dataclass(frozen=True)
class Release:
    """An engine version. *decode_radix_with*: speculative algorithms beside which a decode leg may keep a radix cache.

    *table* is the version whose arguments it has; *hisparse* says where that setting goes, if anywhere,
    and *hisparse_transfers* whether it goes with a connector that transfers KV.
    """

    engine: Literal["sglang", "vllm"]
    version: str
    table: str
    hisparse: HiSparseForm
    hisparse_archs: frozenset[str] = frozenset({"x86_64", "aarch64"})
    hisparse_platforms: frozenset[str] = frozenset({"cuda", "rocm"})
    hisparse_transfers: bool = True
    decode_radix_with: frozenset[str] = frozenset()


# sglang/srt/arg_groups/pd_disaggregation_hook.py: none until 0.5.16; speculative_hook.py of 0.5.23 takes these three.
_RADIX: dict[str, frozenset[str]] = {
    "0.5.15.post1": frozenset(),
    "0.5.16": frozenset(),
    "0.5.23": frozenset({"EAGLE", "EAGLE3", "DSPARK"}),
}
# vllm/config/vllm.py of 0.33.0; the fork is built for CUDA alone.
_CUDA = frozenset({"cuda"})
# NEXTN is another name of EAGLE (sglang/srt/arg_groups/speculative_hook.py).
ALIASES = {"NEXTN": "EAGLE"}


def release(engine: Literal["sglang", "vllm"], version: str, patches: frozenset[str] = frozenset()) -> Release:
    """The facts of *version*, with *patches* of ours in it. UsageError for a version whose arguments are not known.

    A wheel may be a fork that keeps the arguments of the release that it comes from: its local version says so.
    """
    try:
        parsed = Version(version)
    except InvalidVersion as error:
        raise UsageError(str(error)) from None
    if engine == "sglang":
        _known(engine, parsed.public)
        return Release(engine, version, parsed.public, "sglang", decode_radix_with=_RADIX[parsed.public])
    if re.search(r"(^|[.])hisparse([.]|$)", parsed.local or "") and parsed.release[:2] == (0, 24):
        return Release(engine, version, "0.24.0", "attention-config", frozenset({"x86_64"}), _CUDA)
    table = parsed.public
    _known(engine, table)
    if parsed >= Version("0.30.0"):
        return Release(engine, version, table, "connector", hisparse_platforms=_CUDA)
    patched = any(patch == PATCH or patch.startswith(PATCH + "-") for patch in patches)
    if not patched:
        return Release(engine, version, table, "none")
    # What the patch's own validator refuses: patches/vllm/hisparse/files/hot_kv/config.py.
    return Release(engine, version, table, "attention-config", hisparse_platforms=_CUDA, hisparse_transfers=False)


def _known(engine: str, version: str) -> None:
    known = [name.rpartition("-")[2] for name in stored() if name.rpartition("-")[0] == engine]
    if version not in known:
        raise UsageError(
            f"no arguments are known of {engine} {version}, only of {', '.join(known)}",
            hint="make its table from the wheel with scripts/launch_flags.py (docs/launch.md)",
        )
