"""docs/performance.md from raw results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from benchmarks import performance
from benchmarks.plot import plot
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


def test_transfers_of_one_run_are_medians_with_the_range_of_their_rounds(tmp_path: Path) -> None:
    rounds = [one(0.12, descriptors=36, seconds=0.02), one(0.14, staged_loads=1), one(0.30)]
    page = performance.page(written(tmp_path, record("scattered", transfers={"8000": rounds})))
    assert "## 2 x GPU, model of the shape small" in page
    assert (
        "| 8,000 | staged, vLLM 0.33.0 | 1 | 40.0 (20.0 to 200.0) | 20.0 (20.0 to 20.0) | 100.0 | 36 | 1 of 3 |" in page
    )


def test_transfers_of_several_runs_are_medians_of_their_medians(tmp_path: Path) -> None:
    runs = [[one(0.12, seconds=0.02), one(0.9, seconds=0.9), one(0.12, seconds=0.02)], [one(0.14, seconds=0.04)]]
    page = performance.page(written(tmp_path, *(record("fresh", transfers={"512": of}) for of in runs)))
    assert "| 512 | staged, vLLM 0.33.0 | 2 | 30.0 (20.0 to 40.0) | 30.0 (20.0 to 40.0) | 66.7 |  | 0 of 4 |" in page


def test_goals_are_ratios_of_what_telemetry_says_of_engines_at_full_speed(tmp_path: Path) -> None:
    def of(variant: str, step: str, seconds: float, **more: Any) -> dict[str, Any]:
        return {**record(step, transfers={"8000": [one(1.0, seconds=seconds)]}), "variant": variant, **more}

    measured = [
        of("plain", "fresh", 0.010), of("plain", "scattered", 0.080), of("staged-large", "fresh", 0.011),
        of("staged-large", "scattered", 0.008), of("kvcached-staged-large", "scattered", 0.020),
        of("plain", "fresh", 5.0, exact=True),
    ]  # fmt: skip
    page = performance.page(written(tmp_path, *measured))
    assert "| 8,000 | 1.10 | 0.10 |  | 0.50 |" in page


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


def test_transfers_of_a_step_that_failed_are_no_measurement(tmp_path: Path) -> None:
    failed = record("fresh", "failed", transfers={"512": [one(0.12)]}, problems=["no transfer was staged"])
    page = performance.page(written(tmp_path, failed))
    assert "| fresh | staged, vLLM 0.33.0 | failed | no transfer was staged |" in page
    assert "| 512 |" not in page


def test_answers_that_were_lost_and_ways_that_were_taken_are_told(tmp_path: Path) -> None:
    counts = {"equal": 7, "ties": 0, "others": 0}
    killed = record("decode-killed", after=counts, lost={"ServerDisconnectedError": 3}, under_way=4)
    crowd = record("crowd", compared=counts, counted={"staged": 2.0, "direct": 5.0})
    page = performance.page(written(tmp_path, killed, crowd))
    assert "| 7 equal, 0 ties, 0 others; without an answer: 3 of 4 under way | right |" in page
    assert "| 7 equal, 0 ties, 0 others; 2 staged, 5 direct | right |" in page


def test_first_tokens_are_compared_with_computing(tmp_path: Path) -> None:
    of = [{"cold": 0.2, "l1": 0.05, "own": 0.01, "l1_tokens": 1984}] * 3
    page = performance.page(written(tmp_path, record("first-tokens", first_tokens={"2000": of})))
    assert "| 2,000 | staged, vLLM 0.33.0 | 200.0 | 50.0 | 10.0 | 0.25 | 1,984 |" in page


def test_two_first_tokens_that_an_engine_without_a_connector_gives_too_are_no_sides_fault(tmp_path: Path) -> None:
    def sided(side: str, sames: list[str]) -> dict[str, Any]:
        found = timed(side, 0.2, None if side == "none" else 0.1)
        for one, same in zip(found["rounds"]["512"], sames, strict=True):
            one["same"] = same
        return {**found, "outcome": "failed", "problems": [f"{sames.count('other')} other answers"]}

    none, stock = sided("none", ["other", "tie", "equal"]), sided("stock", ["other", "other", "equal"])
    page = performance.page(written(tmp_path, none, stock))
    assert "First tokens: 2 equal to the computed one, 4 where rounding gives two without a connector, too," in page
    assert "0 ties, 0 others.\n" in page
    assert "other answers" not in page
    stock["rounds"]["512"][2]["same"] = "other"
    page = performance.page(written(tmp_path, none, stock))
    assert "0 ties, 1 others. stock, vLLM 0.33.0: 1 other answers." in page


def test_without_raw_results_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="make e2e-gpu"):
        performance.page(written(tmp_path))


def timed(side: str, cold: float, l1: float | None, loaded: int = 496, **more: Any) -> dict[str, Any]:
    """Return a record with three runs of one round, 2 ms apart where they are computed."""
    of = [{"run": run, "cold": cold + 0.002 * run, "own": 0.01, "loaded": loaded, "same": "equal"} for run in range(3)]
    if l1 is not None:
        of = [{**one, "l1": l1} for one in of]
    common = {"variant": side, "facts": {"link": 50e9, "block": 16, "blocks": 100}, "settings": []}
    return {**record("ttft-tiers"), **common, "rounds": {"512": of}, "kv_token": 1_000_000, **more}


def test_first_tokens_of_all_sides_are_told_with_their_spread_and_the_goal(tmp_path: Path) -> None:
    learned = {"512": {"rounds": 39, "taken": 12, "cold": 0.02, "l1": 0.03}}
    page = performance.page(
        written(
            tmp_path,
            timed("none", 0.018, None),
            timed("stock", 0.02, 0.03, jobs=2, settings=["enforce_eager=true"]),
            timed("scheduler", 0.02, 0.015),
            timed("worker", 0.02, 0.023, loaded=0, learned=learned),
        )
    )
    computed, bound = "22.0 (20.0 to 24.0) | 10.0 (10.0 to 10.0)", f"{1.1 * (10 + 496e6 / 50e9 * 1e3):.1f}"
    assert "| 512 | none, vLLM 0.33.0 | 3 | 20.0 (18.0 to 22.0) | 10.0 (10.0 to 10.0) |  |  |  |  |  |  |" in page
    assert f"| stock, vLLM 0.33.0 | 3 | {computed} | 30.0 (30.0 to 30.0) | 496 | 1.36 | {bound} | above |  |" in page
    assert (
        f"| scheduler, vLLM 0.33.0 | 3 | {computed} | 15.0 (15.0 to 15.0) | 496 | 0.68 | {bound} | below |  |" in page
    )
    assert f"| worker, vLLM 0.33.0 | 3 | {computed} | 23.0 (23.0 to 23.0) | 0 | 1.05 |  | within noise | 30.0 |" in page
    assert "(50.0 to 50.0 GB/s)" in page
    command = "python -m e2e.gpu.first_tokens --sides none,stock,scheduler,worker --parts tiers --jobs 2"
    assert f"by `{command}`, or by `{command} -- enforce_eager=true`" in page
    assert " on 2 x GPU, 2 engines at once on GPUs of their own." in page
    assert "First tokens: 12 equal to the computed one, 0 ties, 0 others." in page


def test_first_tokens_of_one_run_have_the_range_of_their_rounds(tmp_path: Path) -> None:
    one = {"run": 0, "cold": 0.02, "own": 0.01, "loaded": 496, "same": "equal"}
    rounds = {"512": [{**one, "l1": seconds} for seconds in (0.015, 0.013, 0.014)]}
    page = performance.page(written(tmp_path, timed("scheduler", 0.02, 0.0, rounds=rounds)))
    own, l1 = "10.0 (10.0 to 10.0)", "14.0 (13.0 to 15.0)"
    assert f"| scheduler, vLLM 0.33.0 | 1 | 20.0 (20.0 to 20.0) | {own} | {l1} | 496 | 0.70 |" in page


def test_what_kvcached_keeps_mapped_is_told_of_each_engine(tmp_path: Path) -> None:
    of = {"used": 144 * 2**20, "reserved": 648 * 2**20, "total": 2**37}
    after = {"mapped": {"a-prefill-0": of, "a-decode-0": of}, "device": []}
    page = performance.page(written(tmp_path, record("memory", after=after, peak=288 * 2**20, kept=432 * 2**20)))
    assert "| prefill | 288 | 144 | 432 | 648 | 131,072 |" in page
    assert "| decode | 288 | 144 | 432 | 648 | 131,072 |" in page


def test_what_was_wrong_with_first_tokens_is_told_below_their_table(tmp_path: Path) -> None:
    page = performance.page(written(tmp_path, timed("worker", 0.02, 0.015, problems=["nothing came from L1"])))
    assert "0 others. worker, vLLM 0.33.0: nothing came from L1." in page


def test_a_hybrid_model_has_no_bound_by_bytes(tmp_path: Path) -> None:
    page = performance.page(written(tmp_path, timed("worker", 0.02, 0.015, kv_token=None)))
    assert "| 496 | 0.68 |  | below |  |" in page


def test_a_flood_is_told_by_means_and_external_hits(tmp_path: Path) -> None:
    runs = [
        {"run": run, "cold": 0.2, "after": 0.1 + 0.01 * run, "hits": 12960 + run, "same": ["equal"] * 9 + ["tie"]}
        for run in range(3)
    ]
    flood = {**timed("worker", 1, None), "step": "ttft-flood", "runs": runs, "flood": [500, 16], "flooded": [10, 1300]}
    del flood["rounds"]
    page = performance.page(written(tmp_path, flood))
    assert "10 prompts of 1,300 tokens, then 500 others of 16 tokens" in page
    row = "200.0 (200.0 to 200.0) | 110.0 (100.0 to 120.0) | 0.55 | 12,960 to 12,962 | 5.0"
    assert f"| worker, vLLM 0.33.0 | {row} |" in page
    assert "27 equal to the computed one, 3 ties, 0 others" in page


def test_a_store_has_a_table_of_its_own_and_what_failed_is_told(tmp_path: Path) -> None:
    of = [{"run": run, "cold": 0.1, "l2": 0.05, "own": 0.01, "loaded": 496, "same": "equal"} for run in range(3)]
    learned = {"512": {"rounds": 12, "taken": 12, "cold": 0.08, "l2": 0.04}}
    store = {**timed("worker", 1, None), "step": "ttft-store", "rounds": {"512": of}, "learned": learned}
    alone = {**store, "variant": "always", "rounds": {"512": [{**one, "loaded": 0} for one in of]}, "learned": {}}
    failed = {**record("ttft-store", "failed", fault="the engine ended with status 1:\nmore"), "variant": "scheduler"}
    page = performance.page(written(tmp_path, store, alone, failed))
    first = "50.0 (50.0 to 50.0)"
    assert f"| 512 | worker, vLLM 0.33.0 | 80.0 | 40.0 | 0.50 | 496 | {first} | below |" in page
    assert f"| 512 | always, vLLM 0.33.0 |  |  |  | 0 | {first} | computed again |" in page
    assert "`python -m e2e.gpu.first_tokens --sides worker,always --parts store`" in page
    assert "| ttft-store | scheduler, vLLM 0.33.0 | failed | the engine ended with status 1: |" in page


def test_a_picture_shows_each_side_and_the_page_links_it(tmp_path: Path) -> None:
    found = performance.written(written(tmp_path, timed("none", 0.02, None), timed("worker", 0.02, 0.011)))
    (picture,) = (file for file in found if file != performance.PAGE)
    assert picture == performance.PAGE.parent / "pictures" / "first-tokens-l1-2-x-gpu-small.svg"
    assert f"](pictures/{picture.name})" in found[performance.PAGE]
    words = [text.text for text in ET.fromstring(found[picture]).iter("{http://www.w3.org/2000/svg}text")]
    assert "worker, vLLM 0.33.0" in words
    assert "none, vLLM 0.33.0" not in words
    assert "512" in words


def test_raw_results_without_times_to_the_first_token_have_no_picture(tmp_path: Path) -> None:
    assert list(performance.written(written(tmp_path, record("up")))) == [performance.PAGE]


def test_points_lie_where_their_values_are() -> None:
    drawn = ET.fromstring(plot("A & B", ("x", "y"), {"one": [(10, 0.0), (1000, 1.0), (100, 0.5)]}, level=1.0))
    at = [
        (float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in drawn.iter("{http://www.w3.org/2000/svg}circle")
    ]
    assert [x for x, _ in at] == sorted(x for x, _ in at)
    assert at[1] == pytest.approx(((at[0][0] + at[2][0]) / 2, (at[0][1] + at[2][1]) / 2), abs=0.1)
    assert at[0][1] > at[2][1]
    with pytest.raises(ValueError, match="no point"):
        plot("nothing", ("x", "y"), {"one": []})
