"""Measured figures that a sizing starts from, each with the file that has it. Tests compare them with those files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

PREFILL_FILE = "benchmarks/results/worker-cache-h200.md"
PREFILL_DEVICE = "h200"
PREFILL_MODEL = "qwen/qwen3-4b"
PREFILL_SECONDS: tuple[tuple[int, float], ...] = (
    (512, 0.0197),
    (2_000, 0.0512),
    (8_000, 0.1362),
    (32_000, 0.9375),
)
"""Prompts of so many tokens, and the time to their first token where all is computed: the slower of two engines."""

L1_BYTES_PER_SECOND = 31e9
"""From host memory to the device: the slowest of the rates in ``PREFILL_FILE``."""

TRANSFER_FILE = "docs/adr/0015-staged-transfers.md"
TRANSFER_DEVICE = "h100"
TRANSFER_BYTES, TRANSFER_SECONDS = 8_000 * 147_456, 0.0929
"""A prompt of 8,000 tokens of that model from prefill to decode by stock NIXL between two H100, after traffic."""

STORE_FILE = "benchmarks/results/store-reads-16-cores.md"
STORE_BYTES_PER_SECOND = 2_715 * 2**20
"""What one Valkey gives to one reader: the slowest of the chunk sizes."""


@dataclass(frozen=True)
class Share:
    """Share of a device's peak that prefill reached; ``within`` where the work lies between measured points."""

    value: float
    within: bool


def share_of_peak(work: float, points: Sequence[tuple[float, float]]) -> Share:
    """The share for ``work`` operations on one device, between measured ``points`` of work and share.

    Between two points it goes with the logarithm of the work; beyond them it stays as it is at the nearest.
    """
    ordered = sorted(points)
    if work <= ordered[0][0]:
        return Share(ordered[0][1], within=work == ordered[0][0])
    for (low, low_share), (high, high_share) in pairwise(ordered):
        if work <= high:
            part = math.log(work / low) / math.log(high / low)
            return Share(low_share + part * (high_share - low_share), within=True)
    return Share(ordered[-1][1], within=False)
