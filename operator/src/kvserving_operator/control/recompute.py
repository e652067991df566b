"""Whether decodes compute prompts again that prefill computed, judged by the counters of one window. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..verify.counters import Counters

LEAST_TOKENS = 512
"""Prompt tokens in a window below which nothing is concluded."""

LEAST_SHARE = 0.5
"""Share of prompt tokens that must have come from outside."""


@dataclass(frozen=True)
class Judgement:
    """``recomputing`` is ``None`` where the window says nothing; ``message`` names the worst engine."""

    recomputing: bool | None
    message: str = ""


def judge(windows: Mapping[str, Counters]) -> Judgement:
    """Judge what the decodes, by pod, counted in one window.

    Queried tokens are those that decode does not hold itself; of them, those that came over the
    connector are hits. One engine that recomputes is enough: the others may be its healthy peers.
    """
    verdicts: dict[str, bool] = {}
    for pod, counted in windows.items():
        if counted.external_queries >= LEAST_TOKENS:
            verdicts[pod] = counted.external_hits < LEAST_SHARE * counted.external_queries
    if not verdicts:
        return Judgement(None)
    bad = sorted(pod for pod, recomputes in verdicts.items() if recomputes)
    if not bad:
        return Judgement(False)
    refusals = ", ".join(sorted({reason for pod in bad for reason in windows[pod].refused}))
    because = f"; its guard refused parameters as {refusals}" if refusals else ""
    return Judgement(
        True, f"decode {bad[0]} computed most prompt tokens again{because} ({len(bad)} of {len(windows)} decodes)"
    )
