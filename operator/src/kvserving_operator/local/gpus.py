"""GPUs of this machine and which pod gets which."""

from __future__ import annotations

import os
import shutil
import subprocess


def visible() -> list[str]:
    """Identifiers for CUDA_VISIBLE_DEVICES of the GPUs that may be used, in order.

    Those named in our own CUDA_VISIBLE_DEVICES when it is set, otherwise all that
    nvidia-smi lists; none without nvidia-smi.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [part.strip() for part in chosen.split(",") if part.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listing = subprocess.run(  # noqa: S603
        [tool, "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=False, timeout=30
    )
    return listing.stdout.split() if listing.returncode == 0 else []


def assign(wanted: dict[str, int], available: list[str]) -> dict[str, list[str]] | None:
    """Give each pod its number of GPUs, in order, none twice; None when there are too few."""
    if sum(wanted.values()) > len(available):
        return None
    rest = list(available)
    result = {}
    for pod, number in wanted.items():
        result[pod], rest = rest[:number], rest[number:]
    return result
