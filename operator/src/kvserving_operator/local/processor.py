"""What engines on the CPU need of this machine's processor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from .pods import LocalPod

_FOR_FP8 = ("avx512f", "amx_tile")


def instructions(folder: Path = Path("/")) -> frozenset[str] | None:
    """Names of the instructions that x86 processors list in ``proc/cpuinfo`` below ``folder``; ``None`` for others."""
    try:
        text = (folder / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else None


def faults(pods: Iterable[LocalPod], known: frozenset[str] | None) -> list[str]:
    """Why engines end at start on a processor with these instructions, ``None`` where it is no x86."""
    asked = {pod.option("--kv-cache-dtype") for pod in pods if not pod.gpus}
    types = sorted(kv for kv in asked if kv is not None and kv.startswith("fp8"))
    if not types or (known is not None and not known.isdisjoint(_FOR_FP8)):
        return []
    return [
        f"spec.engine.kv.dtype={types[0]}: vLLM keeps such KV on an x86 processor with AVX-512 or AMX alone, and this"
        " one has neither: set auto, or use another machine"
    ]
