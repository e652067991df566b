"""The tier behind L1: every rank reads and writes its own share, and the promise is what all of them have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import torch
from tests.connector.worker_cache.cases import BLOCK, CASES, check_answers, failed, prompt
from tests.connector.worker_cache.conftest import Start
from tests.connector.worker_cache.engine import Engine
from tests.connector.worker_cache.pages import full, mamba, sliding
from tests.connector.worker_cache.settings import store
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

from kvserving_connector.store.framing import object_name
from kvserving_connector.vllm.worker_cache import stats
from kvserving_connector.vllm.worker_cache.probes import object_key

pytestmark = pytest.mark.engine


def path_of(engine: Engine, folder: Path, rank: int, key: bytes) -> Path:
    """Return the file of the first block of one rank's part."""
    name = object_name(engine.ranks[rank].half._store._prefix(), object_key(key, 0))
    (found,) = folder.rglob(name)
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_t13_three_modes(start: Start, tmp_path: Path, ranks: int) -> None:
    case = CASES["T13"]
    tokens = prompt(case["input"]["prompt_tokens"])
    (expected,) = {variant["loaded_tokens"] for variant in case["expected"]["variants"]}
    shared = store(tmp_path / "l2")
    first = start(slots=(160,) * ranks, **shared)
    first.serve(tokens, answer=3)
    first.flood()
    assert first.serve(tokens, answer=3) == expected
    assert first.counted(stats.LOADED, "l1") == expected
    for half in (False, True):
        cold = start(slots=(160,) * ranks, name=f"cold{half}", **shared)
        if half:
            cold.serve(tokens[:512])
            cold.flood()
        cold.forget()
        assert cold.serve(tokens, answer=3) == expected
        assert cold.counted(stats.LOADED, "l2") == expected
        assert cold.tracked() == cold.held_by_all()
        check_answers(cold)
        cold.check_over()


def test_t17_the_shortest_of_all_ranks_is_loaded_for_each_of_several_requests(start: Start, tmp_path: Path) -> None:
    case = CASES["T17"]
    tokens = [prompt(512, seed) for seed in range(3)]
    warm = start(slots=(200, 200), **store(tmp_path / "l2"))
    for each in tokens:
        warm.serve(each)
    for rank, ready in enumerate(case["input"]["variants"][0]["ranks"]):
        for each, length in zip(tokens, ready, strict=True):
            if length < 512:
                path_of(warm, tmp_path, rank, warm.keys(each)[length // BLOCK]).unlink()
    cold = start(slots=(200, 200), name="cold", **store(tmp_path / "l2"))
    # One more, so that the whole prompt could be loaded.
    requests = [cold.add([*each, 1]) for each in tokens]
    cold.settle()
    assert [cold.loaded[one] for one in requests] == case["expected"]["variants"][0]["reduced"]
    check_answers(cold)
    cold.check_over()


def test_t17_a_rank_that_has_nothing_holds_nobody_up(start: Start, tmp_path: Path) -> None:
    tokens = prompt(512)
    warm = start(slots=(100, 100), **store(tmp_path / "l2"))
    warm.serve(tokens)
    for key in warm.keys(tokens):
        path_of(warm, tmp_path, 1, key).unlink()
    cold = start(slots=(100, 100), name="cold", **store(tmp_path / "l2"))
    assert cold.serve([*tokens, 1]) == 0
    check_answers(cold)


@pytest.mark.parametrize("facts", [{"model": "m2"}, {"dtype": torch.float16}], ids=["model", "dtype"])
def test_t18_key_namespace_of_l2(start: Start, tmp_path: Path, facts: dict[str, Any]) -> None:
    tokens = prompt(CASES["T18"]["input"]["stored_with"]["tokens"])
    stored = {"model": "m1", "dtype": torch.bfloat16}
    start(facts=stored, **store(tmp_path)).serve(tokens)
    assert start(facts=stored | facts, name="other", **store(tmp_path)).serve(tokens) == 0
    assert start(facts=stored, name="same", **store(tmp_path)).serve(tokens) == 240


def test_t18_key_namespace_within_an_engine(start: Start, tmp_path: Path) -> None:
    tokens = prompt(CASES["T18"]["input"]["stored_with"]["tokens"])
    lora, salt, image = (CASES["T18"]["input"]["asked_with"][index] for index in (2, 3, 4))
    engine = start()
    engine.serve(tokens)
    assert engine.ask(tokens, cache_salt=salt["cache_salt"]) == 0
    assert engine.ask(tokens, lora_request=LoRARequest(lora["lora"], 1, str(tmp_path))) == 0
    place = PlaceholderRange(offset=0, length=32)
    feature = MultiModalFeatureSpec(None, "image", image["image_hash"], place)
    assert engine.ask(tokens, mm_features=[feature]) == 0
    assert engine.ask(tokens) == 240
    engine.check_over()


@pytest.mark.parametrize("when", ["before", "after the look-up"])
def test_t26_an_entry_that_is_gone_is_computed(start: Start, tmp_path: Path, when: str) -> None:
    tokens = prompt(320)
    warm = start(**store(tmp_path))
    warm.serve(tokens)
    gone = path_of(warm, tmp_path, 0, warm.keys(tokens)[4])
    cold = start(name="cold", **store(tmp_path))
    if when == "before":
        gone.unlink()
    else:
        (rank,) = cold.ranks
        load = rank.half._store.load

        def too_late(job: int, items: Any) -> None:
            gone.unlink()
            load(job, items)

        rank.half._store.load = too_late
    assert cold.serve(tokens, answer=4) == 4 * BLOCK
    assert failed(cold) == ()
    check_answers(cold)
    cold.check_over()


def test_t26_a_block_that_ends_with_token_zero_is_not_a_shorter_one_that_was_padded(start: Start) -> None:
    tokens = prompt(31)
    engine = start()
    engine.serve(tokens)
    engine.flood()
    assert engine.serve([*tokens, 0, 1]) == BLOCK
    engine.flood()
    assert engine.serve([*tokens, 1]) == BLOCK
    check_answers(engine)


@pytest.mark.parametrize("groups", [(full(32), mamba(32)), (full(), sliding(40))], ids=["states", "window"])
def test_ranks_that_have_prefixes_of_different_lengths_promise_one_that_all_of_them_have(
    start: Start, tmp_path: Path, groups: tuple[Any, ...]
) -> None:
    tokens = prompt(321)
    warm = start(groups=groups, slots=(160, 160), batch=64, **store(tmp_path))
    warm.serve(tokens)
    # The other rank goes on from further, and for that reads neither the state nor the window that lie here.
    path_of(warm, tmp_path, 1, warm.keys(tokens)[6]).unlink()
    cold = start(groups=groups, slots=(160, 160), name="cold", **store(tmp_path))
    assert 0 < cold.serve(tokens) <= 6 * warm.head._planner.span_tokens
    assert failed(cold) == ()
    check_answers(cold)
    cold.check_over()


def test_what_the_engine_lost_while_the_ranks_looked_is_looked_up_again(start: Start, tmp_path: Path) -> None:
    tokens = prompt(20 * BLOCK)
    start(**store(tmp_path)).serve(tokens)
    cold = start(name="cold", **store(tmp_path))
    request = cold.stranger([*tokens, 1])

    def promised(local: int) -> Any:
        return cold.connector.get_num_new_matched_tokens(request, local)[0]

    cold.until(lambda: promised(10 * BLOCK) == 10 * BLOCK)
    assert promised(12 * BLOCK) == 8 * BLOCK
    assert promised(0) is None
    cold.until(lambda: promised(0) == 20 * BLOCK)
    assert cold.tracked() == cold.held_by_all() == set(cold.keys(tokens))
    cold.connector.request_finished(request, [])
    cold.settle()
    cold.check_over()


@pytest.mark.parametrize("when", ["before all ranks had answered", "after it was ready"])
def test_what_a_rank_found_wrong_of_what_it_had_ready_is_not_promised(start: Start, tmp_path: Path, when: str) -> None:
    tokens = prompt(20 * BLOCK)
    start(slots=(60, 60), **store(tmp_path)).serve(tokens)
    cold = start(name="cold", slots=(60, 60), **store(tmp_path))
    cold.serve(tokens[: 10 * BLOCK])
    request = cold.stranger([*tokens, 1])

    def promised() -> Any:
        return cold.connector.get_num_new_matched_tokens(request, 0)[0]

    second = cold.ranks[1].half
    answers, second._store.found = second._store.found, list
    assert promised() is None
    cold.step()
    rank, found = cold.ranks[0], cold.head._lookups._waiting["stranger"]
    cold.until(lambda: found.probe in cold.head._lookups._quorum)
    if when == "after it was ready":
        second._store.found = answers
        cold.until(lambda: found.ready)
    # As a load does that meets a part which is not what it should be.
    rank.pool.discard(cold.keys(tokens)[3])
    cold.step()
    second._store.found = answers
    cold.until(lambda: promised() == 20 * BLOCK)
    assert cold.tracked() == cold.held_by_all() == set(cold.keys(tokens))
    cold.connector.request_finished(request, [])
    cold.settle()
    cold.check_over()


def test_a_request_that_waits_for_the_store_is_asked_for_again_without_another_look_up(
    start: Start, tmp_path: Path
) -> None:
    tokens = prompt(10 * BLOCK)
    start(**store(tmp_path)).serve(tokens)
    cold = start(name="cold", **store(tmp_path))
    assert cold.serve([*tokens, 1]) == 10 * BLOCK
    probes = [probe for one in cold.metadata for probe in one.probes]
    assert len(probes) == 1
    assert cold.counted(stats.PROMISED, "l2") == 10 * BLOCK


Spoil = Callable[[Path], object]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
        lambda path: path.write_bytes(b""),
    ],
    ids=["short", "flipped", "empty"],
)
def test_a_spoiled_object_is_a_miss(start: Start, tmp_path: Path, spoil: Spoil) -> None:
    tokens = prompt(320)
    warm = start(slots=(64, 64), **store(tmp_path))
    warm.serve(tokens)
    spoil(path_of(warm, tmp_path, 1, warm.keys(tokens)[7]))
    cold = start(name="cold", slots=(64, 64), **store(tmp_path))
    assert cold.serve(tokens, answer=4) == 7 * BLOCK
    assert failed(cold) == ()
    check_answers(cold)
    cold.check_over()
