"""Rows of real tensors over real NIXL, between two agents of this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not importable here; run with the engine's Python")
pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.staging.pairs import BLOCKS, POOL, ROW, Pair, block, cache, notified, paired, until  # noqa: E402

from kvserving_connector.core.staging import HEADER_BYTES, Slot, slot_bytes  # noqa: E402
from kvserving_connector.core.staging_desk import Gather, StagingStep  # noqa: E402
from kvserving_connector.core.staging_pull import Pull, State  # noqa: E402
from kvserving_connector.vllm.staging.producer import Producer  # noqa: E402

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with paired() as found:
        yield found


def test_scattered_blocks_arrive_bit_for_bit_and_their_slot_is_given_back(pair: Pair) -> None:
    blocks, slot = [31, 2, 17, 5, 6, 39, 0, 8], Slot(0, 11, 8, ROW)
    pair.gather(slot, blocks)
    one = Pull("p", slot, [1, 0, 9, 30, 12], b"request:1")
    pair.puller.submit(one)
    until(lambda: one.final)
    assert (one.state, one.reason) == (State.DONE, "")
    assert pair.arrived(one, blocks)
    found: list[bytes] = []

    def told() -> bool:
        found.extend(notified(pair))
        return bool(found)

    until(told)
    assert found == [b"request:1"]
    assert one.bytes == 5 * ROW


def test_many_at_once_go_through_two_chunks(pair: Pair) -> None:
    prompts = []
    for number in range(2):
        blocks = random.Random(number).sample(range(BLOCKS), 16)
        slot = Slot(number * slot_bytes(16, ROW), 100 + number, 16, ROW)
        pair.gather(slot, blocks, f"many{number}")
        prompts.append((slot, blocks))
    pulls = []
    for number in range(64):
        slot, blocks = prompts[number % 2]
        here = [6 * number + row for row in range(1 + number % 6)]
        pulls.append((Pull("p", slot, here, f"x{number}:1".encode()), blocks))
    for one, _ in pulls:
        pair.puller.submit(one)
    until(lambda: all(one.final for one, _ in pulls))
    assert {one.state for one, _ in pulls} == {State.DONE}
    assert all(pair.arrived(one, blocks) for one, blocks in pulls)
    found: set[bytes] = set()

    def all_told() -> bool:
        found.update(notified(pair))
        return len(found) == 64

    until(all_told)


def test_a_slot_given_to_another_prompt_is_a_failed_load(pair: Pair) -> None:
    old, new = Slot(0, 200, 8, ROW), Slot(256, 201, 4, ROW)
    pair.gather(old, list(range(8)), "old")
    pair.gather(new, [9, 10, 11, 12], "new")
    late = Pull("p", old, [20, 21], b"late:1")
    pair.puller.submit(late)
    until(lambda: late.final)
    assert late.state is State.FAILED
    assert "given to another prompt" in late.reason


def test_an_engine_that_is_gone_and_a_slot_beyond_its_pool_fail(pair: Pair) -> None:
    unknown = Pull("nobody", Slot(0, 1, 1, ROW), [1], b"x:1")
    beyond = Pull("p", Slot(POOL, 1, 1, ROW), [1], b"x:1")
    for one in (unknown, beyond):
        pair.puller.submit(one)
    until(lambda: unknown.final and beyond.final)
    assert {unknown.state, beyond.state} == {State.FAILED}
    assert "is gone" in unknown.reason
    assert "beyond" in beyond.reason


def test_the_words_of_a_header_follow_the_rows(pair: Pair) -> None:
    slot = Slot(512, 300, 2, ROW)
    pair.gather(slot, [3, 4], "words")
    words = pair.prefill.memory[512 : 512 + HEADER_BYTES].view(torch.int64)
    assert words[:2].tolist() == [300, 300]
    rows = pair.prefill.memory[slot.rows_offset : slot.end].view(2, ROW)
    assert torch.equal(rows[1], block(pair.prefill.tensors, 4))


def test_a_staged_request_is_never_vllms_to_report_and_all_others_are(pair: Pair) -> None:
    pair.producer.gather(StagingStep(dropped=("a", "many0", "many1", "old", "new", "words")))
    pair.gather(Slot(0, 400, 1, ROW), [1], "staged")
    pair.gather(Slot(0, 401, 1, ROW), [1], "aborted")
    pair.producer.gather(StagingStep(dropped=("aborted",)))
    assert pair.producer.divert({"staged", "plain", "aborted"}) == {"plain", "aborted"}
    assert pair.producer.sent() == {"staged": 1}
    assert pair.producer.sent() == {}
    assert pair.producer.divert({"staged"}) == {"staged"}


def test_blocks_of_several_kernel_blocks_are_as_many_rows() -> None:
    rows, tensors = cache(True)
    producer = Producer(torch.zeros(POOL, dtype=torch.uint8))
    producer.register(rows, 2)
    producer.gather(StagingStep({"a": Gather(Slot(0, 1, 4, ROW), (5, 3))}))
    found = producer.pool[HEADER_BYTES : HEADER_BYTES + 4 * ROW].view(4, ROW)
    assert [torch.equal(found[i], block(tensors, number)) for i, number in enumerate((10, 11, 6, 7))] == [True] * 4
