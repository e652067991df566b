"""A model with sliding windows beside full attention, through vllm-router."""

from __future__ import annotations

from pathlib import Path

from e2e.local.asking import Texts, different
from e2e.local.hybrids import both
from e2e.local.stage import Stage, Topology


def test_sliding_window_through_vllm_router_equals_a_single_engine(stage: Stage, models: Path) -> None:
    model = models / "tiny-gemma3"
    service = stage.show(Topology("gemma", model, router="vllm-router"))
    alone, moved = both(service, Texts(model))
    assert not different(alone, moved)
    assert stage.kvserving("verify", service.name).returncode == 0
