"""Several engines of one role behind the router: equal answers, and one of them killed under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from e2e.local.asking import Question, Reply, Texts, ask_all, different
from e2e.local.crash import kill_under_load
from e2e.local.stage import Service, Stage, Topology


@pytest.fixture
def two_prefills(stage: Stage, expected: object, qwen3: Path) -> Service:
    return stage.show(Topology("two-prefills", qwen3, prefill=2))


@pytest.fixture
def two_decodes(stage: Stage, expected: object, qwen3: Path) -> Service:
    return stage.show(Topology("two-decodes", qwen3, decode=2))


def test_token_ids_of_two_prefills_equal_a_single_engine(
    two_prefills: Service, expected: dict[Question, Reply], texts: Texts
) -> None:
    assert not different(expected, asyncio.run(ask_all(two_prefills.url, texts, "2p1d")))


def test_a_killed_prefill_costs_no_request_that_had_no_answer_yet(
    two_prefills: Service, stage: Stage, texts: Texts
) -> None:
    kill_under_load(two_prefills, stage, texts, "prefill")


def test_token_ids_of_two_decodes_equal_a_single_engine(
    two_decodes: Service, expected: dict[Question, Reply], texts: Texts
) -> None:
    assert not different(expected, asyncio.run(ask_all(two_decodes.url, texts, "1p2d")))


def test_a_killed_decode_costs_only_the_streams_it_served(two_decodes: Service, stage: Stage, texts: Texts) -> None:
    kill_under_load(two_decodes, stage, texts, "decode")
