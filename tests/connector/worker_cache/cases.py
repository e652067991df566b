"""The case files of the tracker, and words that their tests share."""

from __future__ import annotations

import random
from typing import Any

from tests.case_files import read
from tests.connector.worker_cache.engine import Engine

from kvserving_connector.core.ranges import Range, union

CASES = read("tracker")
BLOCK = 16


def prompt(tokens: int, seed: int = 0) -> list[int]:
    """Return a prompt that shares nothing with that of another seed."""
    return random.Random(seed).choices(range(512), k=tokens)


def ranges(wanted: Any) -> tuple[Range, ...]:
    """Return the ranges of a case file as the code has them."""
    return tuple((first, count) for first, count in wanted)


def prepare(engine: Engine, tokens: list[int], tracked: int, local: int = 0) -> None:
    """Have ``tracked`` tokens of the prompt in L1 and ``local`` of them in the engine's own cache."""
    engine.serve(tokens[:tracked])
    engine.flood()
    if local:
        engine.serve(tokens[: local + 1])
    engine.forget()


def saved(engine: Engine) -> list[Range]:
    """Return what saves wrote that was not there before, in the order of the reports."""
    found = []
    for report in engine.reports:
        for save in report.saves.values():
            found += [one for one in save.held if one not in save.present]
    return found


def failed(engine: Engine) -> tuple[Range, ...]:
    """Return what ranks failed to load, of the one request that was loaded for."""
    return union(*[ranges for report in engine.reports for ranges in report.failed.values()])


def check_answers(engine: Engine) -> None:
    """Raise AssertionError unless every request got its whole answer, and the right one."""
    for request_id, text in engine.texts.items():
        answer = engine.answers[request_id]
        assert str(engine.ended[request_id]) == "length", request_id
        assert answer == text.answer(len(answer)), request_id
