"""Tiers of the workers in every mode: L1, L2 and both, on prefill and alone, with one rank and two."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.local.asking import Texts
from e2e.local.crash import RECOVERY_SECONDS
from e2e.local.stage import Stage
from e2e.local.tiers import CHUNKS, WHOLE, Asker
from e2e.local.valkey import Valkey, valkey
from e2e.local.worker_tiers import LARGE, SMALL, Owned, comes_back, l1, loaded, misreading_twin

STORE = {"size": "256Mi", "loads": "always"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with valkey(tmp_path_factory.mktemp("workers")) as found:
        yield found


@pytest.fixture
def aggregated(stage: Stage, qwen3: Path, texts: Texts) -> Asker:
    return Asker(stage.show(Owned("workers-l1", qwen3, prefill=0, cache={"l1": l1()})), texts)


@pytest.fixture
def pair(stage: Stage, qwen3: Path, texts: Texts) -> Asker:
    """L1 alone on prefill."""
    return Asker(stage.show(Owned("workers-pd-l1", qwen3, cache={"l1": l1("prefill")})), texts, "prefill")


@pytest.fixture
def outer(stage: Stage, qwen3: Path, texts: Texts) -> Asker:
    """L2 alone on prefill: the owner of L1 is named for decode."""
    cache = {"l1": l1("decode"), "l2": {**STORE, "roles": ["prefill"]}}
    return Asker(stage.show(Owned("workers-pd-l2", qwen3, cache=cache)), texts, "prefill")


def test_l1_serves_what_the_engine_gave_up(aggregated: Asker, stage: Stage) -> None:
    comes_back(aggregated, stage, "l1", seed=60, flood=SMALL)


def test_what_l1_gave_up_is_computed(aggregated: Asker) -> None:
    cold = aggregated.ask(61)
    aggregated.flood(61000, LARGE)
    with aggregated.counting() as counted:
        assert aggregated.ask(61).ids == cold.ids
    assert loaded(counted()) == {"l1": 0, "l2": 0}
    assert counted().of("kvserving:worker_cache_promised_tokens_total") == 0


def test_usage_says_what_the_workers_hold(aggregated: Asker, stage: Stage) -> None:
    done = stage.kvserving("cache", "usage", aggregated.service.name)
    assert done.returncode == 0, done.stdout
    [pod] = aggregated.service.pods("decode")
    assert re.search(rf"L1 of {pod['name']}: [1-9]\d*Mi of 24Mi", done.stdout), done.stdout


def test_an_engine_that_loads_other_blocks_answers_otherwise(aggregated: Asker, tmp_path: Path) -> None:
    """The comparisons of this file can fail."""
    cold = aggregated.ask(62)
    with misreading_twin(aggregated, tmp_path / "twin.log") as url:
        twin = replace(aggregated, address=url)
        assert twin.ask(62).ids == cold.ids
        twin.flood(62000, SMALL)
        with twin.counting() as counted:
            assert twin.ask(62).ids != cold.ids
        assert loaded(counted()) == {"l1": WHOLE, "l2": 0}


def test_l1_of_prefill_serves_what_prefill_gave_up(pair: Asker, stage: Stage) -> None:
    comes_back(pair, stage, "l1", seed=63, flood=SMALL)


def test_a_cold_prefill_with_l2_alone_loads_what_another_stored(outer: Asker) -> None:
    with outer.storing(CHUNKS):
        cold = outer.ask(64)
    pod = outer.service.pods("prefill")[0]
    os.kill(pod["pid"], signal.SIGKILL)
    outer.service.wait(
        lambda state: any(p["name"] == pod["name"] and p["ready"] and p["pid"] != pod["pid"] for p in state["pods"]),
        RECOVERY_SECONDS,
        "prefill is back",
    )
    outer.answers(65)
    with outer.counting() as counted:
        assert outer.ask(64).ids == cold.ids
    assert loaded(counted()) == {"l1": 0, "l2": WHOLE}


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_cold_engine_loads_from_l2_what_another_stored(
    stage: Stage, qwen3: Path, texts: Texts, store: Valkey, tmp_path: Path, tensor: int
) -> None:
    # Two ranks keep two cores busy, and a server beside them waiting.
    l2 = store.cache() if tensor == 1 else {"type": "filesystem", **STORE}
    topology = Owned(f"workers-{tensor}", qwen3, prefill=0, cache={"l1": l1(), "l2": l2}, tensor=tensor)
    asker = Asker(stage.show(topology), texts)
    with asker.storing(tensor * CHUNKS):
        cold = asker.ask(66)
    comes_back(asker, stage, "l1", seed=67, flood=SMALL)
    stage.clear()

    asker = Asker(stage.show(topology), texts)
    with asker.counting() as counted:
        assert asker.ask(66).ids == cold.ids
    assert loaded(counted()) == {"l1": 0, "l2": WHOLE}, counted()

    with misreading_twin(asker, tmp_path / "twin.log") as url:
        twin = replace(asker, address=url)
        with twin.counting() as counted:
            assert twin.ask(66).ids != cold.ids, "wrong KV must show in this comparison"
        assert loaded(counted()) == {"l1": 0, "l2": WHOLE}, counted()
