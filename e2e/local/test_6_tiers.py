"""Tiers of one service: what the engine's own cache gave up comes back from L1 and from L2."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from e2e.local.asking import Texts
from e2e.local.crash import RECOVERY_SECONDS
from e2e.local.stage import Service, Stage
from e2e.local.tiers import BLOCK, CHUNKS, PROMPT, WHOLE, Asker, Tiered, chunks

L1 = {"size": "24Mi"}
"""48 chunks: a small flood leaves a prompt in it, a large one evicts it."""
SMALL, LARGE = 2, 6
SLOW_SECONDS = 1.0
VALKEY = {"size": "256Mi", "loads": "always"}


def comes_back(asker: Asker, stage: Stage, tier: str, seed: int, flood: int) -> None:
    """Ask, flood, ask again: the same answer, and the engine loaded all whole chunks of the prompt from ``tier``."""
    cold = asker.ask(seed)
    asker.flood(1000 * seed, flood)
    with asker.counting() as counted:
        warm = asker.ask(seed)
    found = counted()
    assert warm.ids == cold.ids
    assert found.own == 0, "the flood was too small: the engine's own cache still had the prompt"
    assert found.loaded == {"l1": 0, "l2": 0, tier: WHOLE}, found
    assert found.external == WHOLE
    stage.numbers.append(
        f"{asker.service.topology.name}, {PROMPT} tokens: first token after {1000 * cold.first:.0f} ms cold, "
        f"{1000 * warm.first:.0f} ms from {tier}"
    )


@pytest.fixture
def aggregated_l1(stage: Stage, qwen3: Path, texts: Texts) -> Asker:
    return Asker(stage.show(Tiered("l1", qwen3, prefill=0, cache={"l1": L1})), texts)


@pytest.fixture
def pair_l1(stage: Stage, qwen3: Path, texts: Texts) -> Asker:
    return Asker(stage.show(Tiered("l1-pd", qwen3, cache={"l1": L1})), texts, "prefill")


@pytest.fixture
def pair_l2(stage: Stage, qwen3: Path, texts: Texts) -> Asker:
    return Asker(stage.show(Tiered("l2-pd", qwen3, cache={"l2": VALKEY})), texts, "prefill")


@pytest.fixture
def both(stage: Stage, qwen3: Path) -> Service:
    roles = ["prefill", "decode"]
    cache = {"l1": {**L1, "roles": roles}, "l2": {**VALKEY, "roles": roles}}
    return stage.show(Tiered("l1-l2-pd", qwen3, cache=cache))


@pytest.fixture
def prefill(both: Service, texts: Texts) -> Asker:
    return Asker(both, texts, "prefill")


def test_l1_of_one_engine_serves_what_its_own_cache_gave_up(aggregated_l1: Asker, stage: Stage) -> None:
    comes_back(aggregated_l1, stage, "l1", seed=1, flood=SMALL)


def test_without_a_store_what_l1_gave_up_is_computed(aggregated_l1: Asker) -> None:
    cold = aggregated_l1.ask(2)
    aggregated_l1.flood(2000, LARGE)
    with aggregated_l1.counting() as counted:
        assert aggregated_l1.ask(2).ids == cold.ids
    assert counted().loaded == {"l1": 0, "l2": 0}
    assert counted().external == 0


def test_usage_says_that_there_is_no_store(aggregated_l1: Asker, stage: Stage) -> None:
    done = stage.kvserving("cache", "usage", aggregated_l1.service.name)
    assert done.returncode == 0, done.stdout
    assert "no shared store (spec.cache.l2)" in done.stdout


def test_l1_of_prefill_serves_what_its_own_cache_gave_up(pair_l1: Asker, stage: Stage) -> None:
    comes_back(pair_l1, stage, "l1", seed=3, flood=SMALL)


def test_a_killed_prefill_loads_from_the_store_what_it_computed_before(pair_l2: Asker, stage: Stage) -> None:
    with pair_l2.storing(CHUNKS):
        cold = pair_l2.ask(4)
    pod = pair_l2.service.pods("prefill")[0]
    os.kill(pod["pid"], signal.SIGKILL)
    pair_l2.service.wait(
        lambda state: any(p["name"] == pod["name"] and p["ready"] and p["pid"] != pod["pid"] for p in state["pods"]),
        RECOVERY_SECONDS,
        "prefill is back",
    )
    pair_l2.answers(5)
    with pair_l2.counting() as counted:
        warm = pair_l2.ask(4)
    assert warm.ids == cold.ids
    assert counted().loaded == {"l1": 0, "l2": WHOLE}
    stage.numbers.append(
        f"l2-pd, {PROMPT} tokens: first token after {1000 * cold.first:.0f} ms cold, {1000 * warm.first:.0f} ms from l2"
    )


def test_l1_before_l2_on_prefill(prefill: Asker, stage: Stage) -> None:
    comes_back(prefill, stage, "l1", seed=6, flood=SMALL)


def test_l2_has_what_l1_gave_up(prefill: Asker, stage: Stage) -> None:
    comes_back(prefill, stage, "l2", seed=7, flood=LARGE)


def test_a_store_that_is_slow_for_a_while_is_waited_for(both: Service, prefill: Asker) -> None:
    """Longer than any step takes, and shorter than a look-up may take: nothing is computed that the store has."""
    with prefill.storing(CHUNKS):
        cold = prefill.ask(12)
    prefill.flood(12000, LARGE)
    [store] = both.pods("store")
    resumed = threading.Timer(SLOW_SECONDS, os.killpg, (store["pid"], signal.SIGCONT))
    with prefill.counting() as counted:
        os.killpg(store["pid"], signal.SIGSTOP)
        resumed.start()
        warm = prefill.ask(12)
    resumed.join()
    assert warm.first > SLOW_SECONDS
    assert warm.ids == cold.ids
    assert counted().loaded == {"l1": 0, "l2": WHOLE}, counted()


def test_the_next_turn_loads_what_decode_generated(both: Service, texts: Texts, prefill: Asker) -> None:
    decode = Asker(both, texts, "decode")
    with decode.storing(chunks(899)), prefill.storing(chunks(600)):
        first = prefill.ask(8, 600, 300, ignore_eos=True)
    turn = [*prefill.tokens(8, 600), *first.ids, *prefill.tokens(9, 100)]
    alone = prefill.paired(turn, cache_salt="computed by prefill alone")
    prefill.ask(8, 600, 1)
    with prefill.counting() as counted:
        assert prefill.paired(turn) == alone
    found = counted()
    assert found.own == chunks(600) * BLOCK
    assert found.loaded["l2"] == (chunks(899) - chunks(600)) * BLOCK, "prefill computed what decode has stored"
    prefill.flood(9000, LARGE)
    with prefill.counting() as counted:
        assert prefill.paired(turn) == alone
    found = counted()
    assert found.loaded == {"l1": 0, "l2": chunks(1000) * BLOCK}, (found.own, found)


def test_salts_keep_requests_apart(prefill: Asker) -> None:
    with prefill.storing(CHUNKS):
        cold = prefill.ask(10, cache_salt="one")
    with prefill.counting() as counted:
        other = prefill.ask(10, cache_salt="two")
    assert other.ids == cold.ids
    assert (counted().own, counted().external) == (0, 0)
    prefill.flood(10000, LARGE)
    with prefill.counting() as counted:
        assert prefill.ask(10, cache_salt="one").ids == cold.ids
    assert counted().loaded["l2"] == WHOLE


def test_usage_shows_hits_by_tier_and_what_the_store_holds(both: Service, stage: Stage, prefill: Asker) -> None:
    done = stage.kvserving("cache", "usage", both.name)
    assert done.returncode == 0, done.stdout
    assert both.pods("prefill")[0]["name"] in done.stdout
    assert "tiny-qwen3 float32" in done.stdout
    told = json.loads(stage.kvserving("cache", "usage", both.name, "-o", "json").stdout)
    rows = {(row["engine"], row["tier"]): row for row in told["hits"]}
    found = rows[both.pods("prefill")[0]["name"], "from outside"]
    assert found["hit"] == prefill.read().external > 0
    [namespace] = told["store"]["namespaces"]
    assert namespace["about"]["kv_dtype"] == "float32"
    assert 0 < namespace["bytes"] <= told["store"]["used_bytes"] <= told["store"]["limit_bytes"]
    assert namespace["objects"] * BLOCK * 4096 <= namespace["bytes"]


def test_purge_asks_and_removes_one_namespace(both: Service, stage: Stage, prefill: Asker) -> None:
    with prefill.storing(CHUNKS):
        cold = prefill.ask(11)
    prefill.flood(11000, LARGE)
    held = json.loads(stage.kvserving("cache", "usage", both.name, "-o", "json").stdout)["store"]["namespaces"]
    name = held[0]["namespace"]
    for wrong, told in (
        ("0" * 32, "the store has no namespace"),
        ("everything", "is no namespace: it has 32 hex digits"),
    ):
        done = stage.kvserving("cache", "purge", both.name, f"--namespace={wrong}")
        assert done.returncode != 0
        assert told in done.stdout
    for typed in ("", "n\n"):
        done = stage.kvserving("cache", "purge", both.name, f"--namespace={name}", typed=typed)
        assert done.returncode != 0
        assert f"Remove {name}" in done.stdout
    assert _objects(stage, both) == held[0]["objects"]
    done = stage.kvserving("cache", "purge", both.name, f"--namespace={name}", "--yes")
    assert done.returncode == 0, done.stdout
    assert f"removed {held[0]['objects']} objects" in done.stdout
    assert _objects(stage, both) == 0
    with prefill.counting() as counted:
        assert prefill.ask(11).ids == cold.ids
    assert counted().loaded == {"l1": 0, "l2": 0}
    assert counted().missed("absent") > 0


def _objects(stage: Stage, service: Service) -> int:
    held = json.loads(stage.kvserving("cache", "usage", service.name, "-o", "json").stdout)["store"]["namespaces"]
    return sum(int(entry["objects"]) for entry in held)
