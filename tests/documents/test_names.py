"""Inline code that looks like a name of ours is one: fields, metrics, alerts, conditions, options, exit statuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documents.known import faults as unknown
from tests.documents.names import FOREIGN, WAY_OUT, faults, in_block, kinds, metrics, sources, words
from tests.documents.pages import DOCS, OTHERS, PAGES, blocks, sections, shown

from kvserving_operator.api import owned
from kvserving_operator.cli import kvserving
from kvserving_operator.cli.plugin import plugin
from kvserving_operator.reference import commands

ABOUT = {
    DOCS / "doctor.md": (["kvserving", "doctor"], ["kubectl", "kvserving", "doctor"]),
    DOCS / "sizing.md": (["kvserving", "plan"],),
}
"""Pages about one command: an option without a command is one of it, or of the engine's."""
ENGINE = {"--max-model-len", "--max-num-seqs", "--quantization", *(flag.shown for flag in owned.FLAGS)}
_SPAN = re.compile(r"`([^`]+)`")


def spans(page: Path) -> list[str]:
    return [" ".join(code.split()) for section in sections(page.read_text()) for code in _SPAN.findall(section.text)]


@pytest.mark.parametrize(
    "span",
    [
        "spec.prefill.replicas",
        "spec.ROLE.template",
        "spec.engine.connector: baked",
        "cache.l1.size",
        "status.roles",
        "connector.image.tag=0.1.0",
        "api/data_spec.py",
        'kvserving:store_misses_total{reason="absent"}',
        "kvserving:worker_cache_{capacity,used}_bytes",
        "kvserving_operator_leader",
        "kvserving:staging_*",
        "KVServingOperatorAbsent",
        "KVServingRole",
        "--data-parallel-*",
        "up --detach",
        "kubectl apply --server-side -f deploy/install.yaml",
        "KVSERVING_ENGINE_PYTHON",
    ],
)
def test_what_is_there_has_no_fault(span: str) -> None:
    assert list(faults(span)) == []


@pytest.mark.parametrize(
    ("span", "fault"),
    [
        ("spec.nope.zzz", "no field is spec.nope.zzz"),
        ("spec.cache.l1.sise: 1Gi", "no field is spec.cache.l1.sise"),
        ("status.rolles", "no field is status.rolles"),
        ("cache.l3.size", "no field of spec, and no value of the chart, is cache.l3.size"),
        ("kvserving:nope_total", "no metric is kvserving:nope_total"),
        ("kvserving:worker_cache_{capacity,lost}_bytes", "no metric is kvserving:worker_cache_lost_bytes"),
        ("kvserving_operator_leaders", "no metric is kvserving_operator_leaders"),
        ("KVServingDown", "no alert or kind is KVServingDown"),
        ("--onlyy findings", "no option is --onlyy"),
        ("--mamboo-*", "no option is --mamboo-*"),
        ("KVSERVING_NOTHING", "no variable is KVSERVING_NOTHING"),
        ("kvserving.dev/nothing", "no label is kvserving.dev/nothing"),
    ],
)
def test_what_is_not_there_is_named(span: str, fault: str) -> None:
    assert list(faults(span)) == [fault]


def test_a_condition_or_reason_is_a_word_of_the_sources() -> None:
    assert list(words("TransferVerified")) == []
    assert list(words("TransferBelieved")) == ["no word of ours is TransferBelieved"]


def test_the_lists_that_names_are_looked_up_in_are_not_empty() -> None:
    assert len(metrics()) > 40
    assert {"KVServing", "KVServingRole", "KVServingNotReady"} <= kinds()


def test_names_of_other_programs_stand_on_a_page_and_not_in_our_sources() -> None:
    said = "\n".join(page.read_text() for page in (*PAGES, *OTHERS))
    assert [name for name in FOREIGN if name not in said] == []
    found = [name for name in FOREIGN if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", sources())]
    assert found == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_names_in_prose_exist(page: Path) -> None:
    assert [(span, fault) for span in spans(page) for fault in (*faults(span), *words(span))] == [], WAY_OUT


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_names_in_blocks_exist(page: Path) -> None:
    assert [(block.line, fault) for block in blocks(page.read_text()) for fault in in_block(block.text)] == [], WAY_OUT


def not_of_the_command(page: Path, span: str) -> bool:
    """Whether a span begins with an option that is neither one of the page's command nor one of the engine's."""
    given = span.split()

    def faulty(command: list[str]) -> bool:
        # A page may name an option without its value.
        return any("requires an argument" not in fault for fault in unknown([*command, *given], whole=False))

    return given[0].partition("=")[0] not in ENGINE and all(map(faulty, ABOUT[page]))


@pytest.mark.parametrize("page", ABOUT, ids=shown)
def test_options_on_the_page_of_a_command_are_its_own(page: Path) -> None:
    options = [span for span in spans(page) if span.startswith("--")]
    assert len(options) > 3
    assert [span for span in options if not_of_the_command(page, span)] == []


def test_an_option_or_value_that_the_command_lacks_is_seen() -> None:
    for span in ("--onlyy findings", "--only finding", "--detach"):
        assert not_of_the_command(DOCS / "doctor.md", span)
    assert not not_of_the_command(DOCS / "sizing.md", "--fact layers=36")


STATUSES = {
    int(number)
    for program, name in ((kvserving, "kvserving"), (plugin, "kubectl kvserving"))
    for ctx in commands.contexts(program, name)
    for number in re.findall(r"^ +(\d+) ", (ctx.command.epilog or "").partition("Exit status:")[2], re.MULTILINE)
}


def statuses(text: str) -> Iterator[int]:
    """The exit statuses that a text tells: what ``exit N`` and sentences and tables about the exit status name."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    yield from map(int, re.findall(r"\bexit (?:status )?(\d+)\b", plain))
    for paragraph in plain.split("\n\n"):
        if re.search(r"\b[Ee]xit status\b", paragraph):
            about = " ".join(paragraph.partition("xit status")[2].split(";")[0].split())
            yield from map(int, re.findall(r"(?:\bis|,|\||\. ) ?(\d+)(?=:| when\b| where\b| \|)", about))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("The exit status is 1 when it fails, 9 when it cannot; `-o json` prints 7.", [1, 9]),
        ("kvserving verify laptop  # exit 4 and the reason", [4]),
        ("| Command | Exit status |\n|---|---|\n| `a` | 0: well. 8: not |\n| `b` | 5 |", [0, 8, 5]),
        ("refused; exit status 3", [3]),
        ("It takes 2 GPUs when there are 4.", []),
    ],
)
def test_exit_statuses_are_found_in_a_text(text: str, told: list[int]) -> None:
    assert list(statuses(text)) == told


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_exit_statuses_are_those_of_the_commands(page: Path) -> None:
    # Beyond 128 it is the number of the signal that ended a process.
    told = {status for status in statuses(page.read_text()) if status <= 128}
    assert sorted(told - STATUSES) == []


def test_the_page_of_doctor_tells_the_statuses_that_it_ends_with() -> None:
    text = " ".join((DOCS / "doctor.md").read_text().split())
    said = re.search(r"The exit status is (\d) when there is an error among the findings, (\d) when", text)
    assert said is not None
    ends = dict(re.findall(r"^ +(\d) +(.*)$", plugin.epilog or "", re.MULTILINE))
    assert ends[said[1]].startswith("the answer is no")
    assert ends[said[2]].startswith("the cluster cannot be reached")
