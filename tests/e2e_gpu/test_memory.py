"""What is said of the memory that an engine under kvcached keeps."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.gpu.memory import Mapped, group_bytes, kept_bytes, mapped, problems
from e2e.gpu.shapes import GPU
from e2e.gpu.variants import VARIANTS, Lane

GROUP = group_bytes(GPU)
FIRST, SECOND = "kvcached-bounded-1a-uid1", "kvcached-bounded-1a-uid2"


def test_segments_are_those_of_the_service_in_kvcacheds_form(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(struct.pack("<3q", 10**11, 5 * GROUP, GROUP))
    (tmp_path / "kvcached-bounded-lock").write_bytes(b"")
    (tmp_path / "other").write_bytes(struct.pack("<3q", 1, 2, 3))
    assert mapped("kvcached-bounded", tmp_path) == {FIRST: Mapped(10**11, 5 * GROUP, GROUP)}


@pytest.mark.parametrize(
    ("used", "reserved", "grown", "wrong"),
    [
        (0, 0, 0, []),
        (kept_bytes(GPU), 10 * GROUP, kept_bytes(GPU) + 5 * GROUP, []),
        (kept_bytes(GPU) + 1, 0, 0, [SECOND]),
        (0, 11 * GROUP, 0, [SECOND]),
        (0, 0, 6000 * GPU.kv_token + 6 * GROUP, ["GPU 1"]),
    ],
)
def test_more_than_the_bound_and_the_reserve_is_told(used: int, reserved: int, grown: int, wrong: list[str]) -> None:
    before = {"mapped": {}, "device": [10**10, 10**10]}
    after = {
        "mapped": {FIRST: Mapped(10**11, 0, 0), SECOND: Mapped(10**11, used, reserved)},
        "device": [10**10, 10**10 + grown],
    }
    assert [found[: len(name)] for found, name in zip(problems(before, after, GPU), wrong, strict=True)] == wrong


def test_an_engine_of_which_nothing_is_known_is_told() -> None:
    looked = {"mapped": {FIRST: Mapped(1, 0, 0)}, "device": [0]}
    (found,) = problems(looked, looked, GPU)
    assert "1 engines" in found


def test_six_times_the_bound_would_show() -> None:
    assert kept_bytes(GPU) < 6000 * GPU.kv_token
    assert kept_bytes(replace(GPU, layers=18)) < kept_bytes(GPU)


def test_the_variant_bounds_the_cache_of_its_engines(tmp_path: Path) -> None:
    lane = Lane("bounded", tmp_path, variant=VARIANTS["kvcached-bounded"], shape=GPU)
    assert '"maxCachedTokens": 1000' in lane.text("bounded")
    assert "maxCachedTokens" not in replace(lane, variant=VARIANTS["kvcached-staged"]).text("bounded")
