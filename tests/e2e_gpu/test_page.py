"""docs/performance.md from raw results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import performance
from benchmarks.table import NotMeasured


def record(step: str, outcome: str = "measured", **more: Any) -> dict[str, Any]:
    common = {"variant": "staged", "device": "2 x GPU", "shape": "small", "versions": {"vllm": "0.33.0"}}
    return {"step": step, "outcome": outcome, **common, **more}


def one(decode: float, **more: float) -> dict[str, float]:
    return {"prefill": 1.0, "decode": decode, "hit": 0.1, "our_bytes": 2e9, **more}


def written(folder: Path, *records: dict[str, Any]) -> list[Path]:
    file = folder / "raw.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    return [file]


def test_transfers_are_medians_of_all_rounds_with_their_range(tmp_path: Path) -> None:
    rounds = [one(0.12, descriptors=36, seconds=0.02), one(0.14, staged_loads=1), one(0.30)]
    page = performance.page(written(tmp_path, record("scattered", transfers={"8000": rounds})))
    assert "## 2 x GPU, model of the shape small" in page
    assert "| 8,000 | staged, vLLM 0.33.0 | 40.0 (20.0 to 200.0) | 50.0 | 20.0 | 36 | 1 of 3 |" in page


def test_answers_and_what_is_wrong_are_told(tmp_path: Path) -> None:
    counts = {"equal": 6, "ties": 1, "others": 0, "parted": [0.01]}
    page = performance.page(
        written(
            tmp_path,
            record("ids", rounds=[counts, counts], problems=[]),
            record("crowd", "failed", compared={**counts, "others": 2}, problems=["2 other answers"]),
            record("up", "failed", fault="no module a|b\nand more"),
            record("aborts", "left out", fault="no time is left"),
        )
    )
    assert "| token ids, 7 lengths in 3 rounds | staged, vLLM 0.33.0 | 12 equal, 2 ties, 0 others | right |" in page
    assert "| 6 equal, 1 ties, 2 others | 2 other answers |" in page
    assert "| up | staged, vLLM 0.33.0 | failed | no module a/b |" in page


def test_first_tokens_are_compared_with_computing(tmp_path: Path) -> None:
    of = [{"cold": 0.2, "l1": 0.05, "own": 0.01, "l1_tokens": 1984}] * 3
    page = performance.page(written(tmp_path, record("first-tokens", first_tokens={"2000": of})))
    assert "| 2,000 | staged, vLLM 0.33.0 | 200.0 | 50.0 | 10.0 | 0.25 | 1,984 |" in page


def test_without_raw_results_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="make e2e-gpu"):
        performance.page(written(tmp_path))
