"""The hybrid offload planner: spans, parts and prefixes over groups with blocks of several sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests import case_files

from kvserving_connector.core.planner import Group, GroupKind, HybridOffloadPlanner

CASES = case_files.read("hybrid")


def plan(case: Mapping[str, Any], **changed: Any) -> HybridOffloadPlanner:
    case = {**case, **changed}
    return HybridOffloadPlanner.make(
        [Group(GroupKind(group["kind"]), group["block_tokens"], group.get("window")) for group in case["groups"]],
        hash_block_tokens=case["hash_block_tokens"],
        max_model_len=case["max_model_len"],
        hybrid_chunk_size=case["hybrid_chunk_size"],
    )


def refusal(case: Mapping[str, Any], **changed: Any) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        plan(case, **changed)
    return str(refused.value)


def suggested(text: str) -> int | None:
    found = re.search(r"the nearest size that works is (\d+)$", text)
    return None if found is None else int(found.group(1))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["expected"]["outcome"] == "ok"])
def test_a_case_is_planned_as_it_says(name: str) -> None:
    case, expected = CASES[name], CASES[name]["expected"]
    planner = plan(case)
    assert planner.warnings == ()
    if "chunks_per_block" in expected:
        assert list(planner.chunks_per_block) == expected["chunks_per_block"]
    if "blocks_in_one_chunk_range" in expected:
        assert list(planner.blocks_in_chunk) == expected["blocks_in_one_chunk_range"]
    for prompt in expected.get("prompts", ()):
        assert planner.spans(prompt["prompt_tokens"]) * planner.span_tokens == prompt["stored_prefix_tokens"], prompt
    for item in expected.get("slices", ()):
        slices = planner.slices(item["chunk"])
        one = slices[item.get("group", 0)]
        if "block" in item:
            tokens = item["tokens_in_block"] if "tokens_in_block" in item else item["tokens"]
            covered = (one.blocks, one.first_token, one.tokens)
            assert covered == (range(item["block"], item["block"] + 1), item["first_token_in_block"], tokens)
        else:
            blocks = [item["blocks"]] if "group" in item else item["blocks"]
            shown = [one] if "group" in item else slices
            assert [[each.blocks.start, each.blocks.stop] for each in shown] == blocks


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "load" in case["expected"] and name != "h13"])
def test_a_case_promises_the_prefix_that_every_group_can_go_on_from(name: str) -> None:
    case, load = CASES[name], CASES[name]["expected"]["load"]
    planner = plan(case)
    present = case.get("present")
    prefix = planner.prefix_tokens(
        lambda group, span: present is None or span in present[group], load["prompt_tokens"], 0
    )
    assert prefix == load["prefix_tokens"]
    needed = [list(planner.needed(group, prefix)) for group in range(len(planner.groups))]
    if "chunks_needed" in load:
        assert needed == load["chunks_needed"]
    if "mamba_states" in load:
        assert needed == [load["full_chunks"], load["mamba_states"]]


def test_a_state_kept_only_at_the_end_of_a_request_is_refused_with_the_way_out() -> None:
    text = refusal(CASES["h13"])
    assert "no size works" in text
    assert "--mamba-cache-mode align" in text


def test_a_group_that_the_size_does_not_divide_is_kept_whole_with_a_warning() -> None:
    expected = CASES["h06"]["expected"]
    planner = plan(CASES["h06"])
    (warning,) = planner.warnings
    assert all(word in warning for word in expected["must_contain"])
    assert "shorter than 528 tokens" in warning
    assert planner.kept_whole == (expected["if_warning"]["group_kept_whole"],)
    for prompt in expected["if_warning"]["prompts"]:
        assert planner.spans(prompt["prompt_tokens"]) * planner.span_tokens == prompt["stored_prefix_tokens"], prompt


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["expected"]["outcome"] == "error"])
def test_a_size_that_could_store_nothing_is_refused_with_the_nearest_that_works(name: str) -> None:
    case, expected = CASES[name], CASES[name]["expected"]
    text = refusal(case)
    assert all(word in text for word in expected["must_contain"]), text
    size = suggested(text)
    assert size is not None
    assert size < expected.get("suggested_size_below", case["max_model_len"])
    assert plan(case, hybrid_chunk_size=size).warnings == ()
    for changed in expected.get("also_error", ()):
        refusal(case, **changed)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"groups": []}, "groups is empty"),
        ({"groups": [{"kind": "full", "block_tokens": 0}]}, r"groups\[0\]\.block_tokens is 0"),
        (
            {"groups": [{"kind": "full", "block_tokens": 24}]},
            r"block_tokens is 24, no multiple of hash_block_tokens 16",
        ),
        ({"groups": [{"kind": "sliding_window", "block_tokens": 16}]}, r"groups\[0\]\.window is None"),
        ({"hash_block_tokens": 0}, "hash_block_tokens is 0"),
        ({"max_model_len": -1}, "max_model_len is -1"),
        ({"hybrid_chunk_size": None, "max_model_len": 16}, "hybrid_chunk_size is not set, and 16 .* no size works"),
    ],
)
def test_a_plan_that_has_no_meaning_is_refused_by_the_field_at_fault(changed: dict[str, Any], text: str) -> None:
    assert re.search(text, refusal(CASES["h01"], **changed))


@given(
    st.lists(st.sampled_from([2, 4, 6, 8, 12, 20]), min_size=1, max_size=3),
    st.integers(-4, 80),
    st.integers(2, 60),
)
@example([12, 2], 22, 60)
@example([4, 6], 70, 50)
def test_a_suggested_size_works_and_none_is_nearer(blocks: list[int], size: int, max_model_len: int) -> None:
    case = {
        "groups": [{"kind": "full", "block_tokens": block} for block in blocks],
        "hash_block_tokens": 2,
        "max_model_len": max_model_len,
    }

    def attempt(candidate: int) -> HybridOffloadPlanner | str:
        try:
            return plan(case, hybrid_chunk_size=candidate)
        except ValueError as refused:
            return str(refused)

    planned = attempt(size)
    if isinstance(planned, str):
        tried = [(candidate, attempt(candidate)) for candidate in range(2, max_model_len, 2)]
        working = [candidate for candidate, it in tried if not isinstance(it, str) and not it.kept_whole]
        assert suggested(planned) == min(working, key=lambda it: (abs(it - size), it), default=None)
    else:
        assert 2 <= size < max_model_len
        assert planned.span_tokens < max_model_len


@st.composite
def planners(draw: st.DrawFn) -> HybridOffloadPlanner:
    groups = draw(
        st.lists(
            st.builds(
                Group,
                st.sampled_from(GroupKind),
                st.sampled_from([2, 4, 6, 8]),
                st.integers(1, 60),
            ),
            min_size=1,
            max_size=4,
        )
    )
    size = draw(st.sampled_from([None, 2, 4, 8, 12, 16]))
    return HybridOffloadPlanner.make(groups, hash_block_tokens=2, max_model_len=1000, hybrid_chunk_size=size)


def reads(group: Group, prefix: int) -> set[int]:
    """The blocks that attention or a state reads to compute the token at ``prefix``, token by token."""
    if prefix == 0:
        return set()
    if group.kind is GroupKind.MAMBA:
        return {prefix // group.block_tokens - 1}
    tokens: range = range(prefix)
    if group.kind is GroupKind.SLIDING_WINDOW:
        assert group.window is not None
        tokens = range(max(0, prefix - group.window + 1), prefix)
    return {token // group.block_tokens for token in tokens}


@given(planners(), st.integers(0, 150), st.integers(0, 160), st.data())
def test_the_promised_prefix_is_the_longest_whose_every_block_is_there(
    planner: HybridOffloadPlanner, num_tokens: int, local_tokens: int, data: st.DataObject
) -> None:
    size = planner.span_tokens
    spans, groups = num_tokens // size, range(len(planner.groups))
    held = {(g, s): data.draw(st.integers(0, 4), label=f"{g}, {s}") > 0 for g in groups for s in range(spans)}
    asked: list[tuple[int, int]] = []

    def present(group: int, span: int) -> bool:
        asked.append((group, span))
        return held[group, span]

    def there(group: int, block: int) -> bool:
        span = block * planner.groups[group].block_tokens // size
        return (span + 1) * size <= local_tokens or (held[group, span] and block in planner.part_blocks(group, span))

    longest = max(
        prefix
        for prefix in range(0, max(num_tokens, 1), size)
        if all(there(g, block) for g in groups for block in reads(planner.groups[g], prefix))
    )
    assert planner.prefix_tokens(present, num_tokens, local_tokens) == longest
    assert len(asked) == len(set(asked))
    assert all((span + 1) * size > local_tokens for _, span in asked)


@given(planners(), st.integers(0, 12), st.integers(0, 160))
def test_what_is_loaded_is_what_going_on_reads_and_the_engine_lacks(
    planner: HybridOffloadPlanner, spans: int, local_tokens: int
) -> None:
    prefix = spans * planner.span_tokens
    assume(prefix == 0 or prefix > local_tokens)
    for index, group in enumerate(planner.groups):
        loaded = planner.blocks_to_load(index, prefix, local_tokens)
        lacked = {block for block in reads(group, prefix) if (block + 1) * group.block_tokens > local_tokens}
        assert [block for _, block, _ in loaded] == sorted(lacked)
        for span, block, place in loaded:
            assert span in planner.needed(index, prefix)
            assert planner.part_blocks(index, span)[place] == block
            assert place < planner.blocks_per_part(index)


@given(planners(), st.integers(0, 40))
def test_every_part_of_a_group_has_as_many_blocks_and_ends_with_its_span(
    planner: HybridOffloadPlanner, span: int
) -> None:
    for index, group in enumerate(planner.groups):
        blocks = planner.part_blocks(index, span)
        assert len(blocks) == planner.blocks_per_part(index) >= 1
        assert blocks.start * group.block_tokens >= span * planner.span_tokens
        assert blocks.stop * group.block_tokens == (span + 1) * planner.span_tokens


@given(planners(), st.integers(1, 400), st.integers(0, 12))
def test_a_span_is_the_smallest_step_of_whole_blocks_hashes_and_chunks(
    planner: HybridOffloadPlanner, tokens: int, chunk: int
) -> None:
    size = planner.span_tokens
    steps = [planner.hash_block_tokens]
    for index, group in enumerate(planner.groups):
        whole = planner.blocks_in_chunk[index]
        steps.append(group.block_tokens if whole is None else planner.chunk_tokens)
        assert whole is None or whole * group.block_tokens == planner.chunk_tokens
        split = planner.chunks_per_block[index]
        assert split is None or split * planner.chunk_tokens == group.block_tokens
        assert (index in planner.kept_whole) == (whole is None and split is None)
        covered = planner.slices(chunk)[index]
        start = covered.blocks.start * group.block_tokens + covered.first_token
        assert (start, covered.tokens) == (chunk * planner.chunk_tokens, planner.chunk_tokens)
        last = (start + covered.tokens - 1) // group.block_tokens
        assert (covered.first_token < group.block_tokens, covered.blocks.stop) == (True, last + 1)
    assert size == next(step for step in range(1, size + 1) if all(step % other == 0 for other in steps))
    assert planner.hashes_per_span * planner.hash_block_tokens == size
    assert 0 <= tokens - planner.spans(tokens) * size < size
    assert tokens - size <= planner.limit(tokens) < tokens
    assert planner.limit(tokens) % size == 0


def counted(present: Callable[[int, int], bool]) -> tuple[list[tuple[int, int]], Callable[[int, int], bool]]:
    asked: list[tuple[int, int]] = []

    def ask(group: int, span: int) -> bool:
        asked.append((group, span))
        return present(group, span)

    return asked, ask


@pytest.mark.parametrize("order", [1, -1])
def test_a_miss_at_the_start_costs_one_question_and_a_state_is_asked_for_from_the_end(order: int) -> None:
    groups = [Group(GroupKind.FULL, 16), Group(GroupKind.MAMBA, 16)][::order]
    full, mamba = (0, 1)[::order]
    planner = HybridOffloadPlanner.make(groups, hash_block_tokens=16, max_model_len=4096)
    asked, ask = counted(lambda group, span: False)
    assert planner.prefix_tokens(ask, 1600) == 0
    assert asked == [(full, 0)]
    asked, ask = counted(lambda group, span: True)
    assert planner.prefix_tokens(ask, 1600) == 1584
    assert [item for item in asked if item[0] == mamba] == [(mamba, 98)]


def test_a_window_much_shorter_than_a_span_takes_no_slots_for_what_nothing_reads() -> None:
    groups = [Group(GroupKind.FULL, 1056), Group(GroupKind.SLIDING_WINDOW, 16, 128)]
    planner = HybridOffloadPlanner.make(groups, hash_block_tokens=16, max_model_len=32768)
    assert [planner.blocks_per_part(group) for group in (0, 1)] == [1, 8]
    assert planner.part_blocks(1, 2) == range(3 * 66 - 8, 3 * 66)
