"""Keys of spans and parts: each hashed once, and again only where the blocks changed."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import case_files

from kvserving_connector.core.chunk_hashes import ChunkHashes, HashBook, part_key, span_hash
from kvserving_connector.core.planner import Group, GroupKind, HybridOffloadPlanner


def chain(tokens: list[int]) -> list[bytes]:
    """Block hashes as vLLM makes them: each takes in the one before."""
    hashes: list[bytes] = []
    for token in tokens:
        hashes.append(sha256((hashes[-1] if hashes else b"") + bytes([token])).digest())
    return hashes


def test_a_long_prompt_of_two_groups_is_hashed_in_the_first_step_only() -> None:
    case = case_files.read("hybrid")["h18"]
    expected = case["expected"]
    planner = HybridOffloadPlanner.make(
        [Group(GroupKind(group["kind"]), group["block_tokens"]) for group in case["groups"]],
        hash_block_tokens=case["hash_block_tokens"],
        max_model_len=case["max_model_len"],
        hybrid_chunk_size=case["hybrid_chunk_size"],
    )
    calls: list[bytes] = []

    def combine(block_hash: bytes) -> bytes:
        calls.append(block_hash)
        return sha256(block_hash).digest()

    book = HashBook(planner.hashes_per_span, combine)
    grown = chain([7] * (expected["after_growth"]["prompt_tokens"] // planner.hash_block_tokens))
    prompt = grown[: case["prompt_tokens"] // planner.hash_block_tokens]
    first = list(book.of("request").keys(prompt))
    assert len(first) == len(set(first)) == len(calls) == book.calls == expected["distinct_chunk_hashes"]
    for _ in range(case["scheduler_steps"] - 1):
        assert book.of("request").keys(prompt) == first
    assert len(calls) - len(first) == expected["hash_calls_after_first_step"]
    assert book.of("request").keys(grown)[: len(first)] == first
    assert len(calls) - len(first) == book.calls - len(first) == expected["after_growth"]["new_chunk_hashes"]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 1), max_size=8)), max_size=6),
)
def test_keys_follow_whatever_becomes_of_the_prompt_and_nothing_is_hashed_twice(
    per_span: int, edits: list[tuple[int, list[int]]]
) -> None:
    combine = span_hash(per_span)
    hashes = ChunkHashes(per_span)
    tokens: list[int] = []
    known: list[bytes] = []
    calls = 0
    for kept, added in edits:
        tokens = tokens[:kept] + added
        blocks = chain(tokens)
        expected = [combine(blocks[end - 1]) for end in range(per_span, len(blocks) + 1, per_span)]
        same = 0
        while same < min(len(known), len(expected)) and known[same] == expected[same]:
            same += 1
        calls += len(expected) - same
        assert list(hashes.keys(blocks)) == expected
        assert hashes.calls == calls
        known = expected


def test_keys_that_were_handed_out_keep_their_place_when_the_prompt_changes() -> None:
    hashes = ChunkHashes(2)
    handed_out = hashes.keys(chain([1, 2, 3, 4]))
    before = list(handed_out)
    hashes.keys(chain([1, 2, 5, 6, 7, 8]))
    assert list(handed_out) == before


def test_spans_of_two_sizes_that_end_at_one_block_have_different_keys() -> None:
    blocks = chain([1, 2, 3, 4])
    keys = [ChunkHashes(size).keys(blocks)[-1] for size in (1, 2, 4)]
    assert len(set(keys)) == 3
    assert {len(key) for key in keys} == {32}


def test_a_span_without_hashes_is_refused() -> None:
    with pytest.raises(ValueError, match="hashes_per_span is 0"):
        ChunkHashes(0)


def test_a_dropped_request_is_forgotten_and_its_calls_still_count() -> None:
    book = HashBook(1)
    blocks = chain([1, 2, 3])
    book.of("a").keys(blocks)
    book.of("b").keys(blocks[:1])
    assert book.of("a") is book.of("a")
    assert (len(book), book.calls) == (2, 4)
    book.drop("a")
    book.drop("a")
    assert (len(book), book.calls) == (1, 4)
    book.of("a").keys(blocks)
    assert (len(book), book.calls) == (2, 7)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**16 - 1))
def test_a_part_s_key_tells_its_span_and_its_group(span_key: bytes, group: int) -> None:
    key = part_key(span_key, group)
    assert (key[:32], int.from_bytes(key[32:], "big")) == (span_key, group)
    assert len(key) == 34


def test_a_part_s_key_orders_bytes_as_written_and_a_group_that_does_not_fit_is_refused() -> None:
    assert part_key(b"k" * 32, 258) == b"k" * 32 + b"\x01\x02"
    with pytest.raises(OverflowError):
        part_key(b"k" * 32, 2**16)
