"""A service that runs on this machine: its processes, its proof, and what its engines counted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvserving_operator import cli
from kvserving_operator.doctor import checks, report
from kvserving_operator.doctor.facts import Engine, Process, Series, ServiceFacts
from kvserving_operator.doctor.findings import Severity
from kvserving_operator.local.state import PodState, ServiceDir, State

METRICS = """
# TYPE kvserving:receipts counter
kvserving:receipts_total 4
# TYPE vllm:external_prefix_cache_queries counter
vllm:external_prefix_cache_queries_total 10000
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total 10
"""
GOOD = METRICS.replace("hits_total 10\n", "hits_total 9900\n")
FACTS = ServiceFacts(
    name="svc",
    phase="Ready",
    message="",
    revision="0123abcd",
    version="0.32.0",
    pods=(
        Process("svc-prefill-0", "prefill", "Ready", True, 0, ""),
        Process("svc-decode-0", "decode", "Ready", True, 0, ""),
    ),
    verified=True,
    proof="verified",
    engines={"svc-decode-0": Engine("0.32.0+cpu", Series.parse(GOOD))},
)


def told(facts: ServiceFacts) -> dict[str, str]:
    return {finding.check: f"{finding.where}: {finding.what} {finding.fix}" for finding in checks.of_service(facts)}


def test_a_service_without_a_flaw_has_no_finding() -> None:
    assert told(FACTS) == {}


def test_what_is_wrong_with_a_service_is_told_with_the_command_that_helps() -> None:
    down = Process("svc-prefill-0", "prefill", "Failed", False, 0, "exit status 1")
    again = Process("svc-decode-0", "decode", "Ready", True, 3, "signal 9")
    bad = replace(
        FACTS, phase="Degraded", message="the disk is full", pods=(down, again), verified=False, proof="no KV"
    )
    found = told(bad)
    assert "svc-prefill-0: it is Failed; its last exit: exit status 1" in found["process-not-ready"]
    assert "`kvserving logs svc svc-prefill-0 --previous` says why" in found["process-not-ready"]
    assert "3 times; its last exit: signal 9" in found["restarted"]
    assert "the disk is full" in found["service-message"]
    assert "svc: no KV" in found["not-verified"]


@pytest.mark.parametrize(
    ("phase", "engine_ready", "told_of"),
    [
        ("NotReady", False, ["svc-decode-0"]),
        ("Failed", False, ["svc-decode-0", "svc-router-0"]),
        ("NotReady", True, ["svc-router-0"]),
    ],
)
def test_a_router_that_only_waits_for_an_engine_is_no_fault_of_its_own(
    phase: str, engine_ready: bool, told_of: list[str]
) -> None:
    engine = Process("svc-decode-0", "decode", "Ready" if engine_ready else "Restarting", engine_ready, 0, "")
    router = Process("svc-router-0", "router", phase, False, 0, "")
    found = checks.of_service(replace(FACTS, phase="Degraded", pods=(engine, router)))
    assert [finding.where for finding in found if finding.check == "process-not-ready"] == told_of


def test_of_a_service_whose_supervisor_was_killed_that_alone_is_told() -> None:
    pods = tuple(replace(pod, phase="Lost", ready=False) for pod in FACTS.pods)
    message = "its supervisor was killed; `kvserving down svc` clears up what it left"
    lost = replace(FACTS, phase="Lost", pods=pods, message=message, engines={})
    (finding,) = checks.of_service(lost)
    assert (finding.check, finding.severity) == ("supervisor-gone", Severity.ERROR)
    assert finding.fix.startswith("`kvserving down svc`")


def test_of_a_service_that_failed_its_reason_alone_is_told_and_in_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    message = (
        "svc-decode-0 ended 3 times before it was ready: exit status 1. Its last lines:\n"
        "  | Traceback (most recent call last):\n"
        "  | RuntimeError: no device\n"
        "The whole log: /logs/svc-decode-0.log"
    )
    pods = tuple(
        PodState(f"svc-{role}-0", role, "127.0.0.1", 1, phase="Stopped", last_exit="signal 15", restarts=1)
        for role in ("prefill", "decode", "router")
    )
    directory = ServiceDir("svc")
    directory.create()
    directory.write(State("svc", "r", "Failed", {"url": None}, sys.executable, "tiny", pods, {}, message=message))
    assert cli.run(["doctor", "svc", "-o", "json"]) == 1
    assert [f["check"] for f in json.loads(capsys.readouterr().out)["findings"]] == ["service-failed"]
    assert cli.run(["doctor", "svc"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "\\n" not in "".join(lines)
    head = lines.index("ERROR    svc  (service-failed)")
    told = "svc-decode-0 ended 3 times before it was ready: exit status 1. RuntimeError: no device"
    assert lines[head + 1].strip() == told
    assert lines[-1] == "1 error"


@pytest.mark.parametrize("phase", ["Starting", "Degraded"])
def test_one_that_ended_before_it_was_ready_is_an_error_with_its_last_words(phase: str) -> None:
    last = "exit status 1: ValueError: too little"
    pod = Process("svc-prefill-0", "prefill", "Loading", False, 2, last, early=2, losses=0)
    (finding,) = checks.of_service(replace(FACTS, phase=phase, pods=(pod,), engines={}))
    assert (finding.check, finding.severity) == ("ended-before-ready", Severity.ERROR)
    assert finding.what == f"it ended 2 times before it was ready: {last}; now it is Loading"
    assert finding.fix == "`kvserving logs svc svc-prefill-0 --previous` says why"
    (served,) = checks.of_service(replace(FACTS, pods=(replace(pod, ready=True, phase="Ready", early=0),), engines={}))
    assert (served.check, served.why) == (
        "restarted",
        "the start took longer: it ended before it was ready, so that no request of it failed",
    )


@pytest.mark.parametrize(
    ("phase", "phases", "line"),
    [
        ("Ready", ("Ready", "Ready"), "2 processes, counters of 1 engine"),
        ("Degraded", ("Restarting", "Ready"), "1 of 2 processes run, counters of 1 engine"),
        ("Failed", ("Stopped", "Stopped"), "none of its 2 processes runs"),
        ("Lost", ("Lost", "Lost"), "2 processes without a supervisor"),
    ],
)
def test_how_many_processes_run_is_told(phase: str, phases: tuple[str, ...], line: str) -> None:
    pods = tuple(replace(pod, phase=now) for pod, now in zip(FACTS.pods, phases, strict=True))
    assert list(report.service_lines(replace(FACTS, phase=phase, pods=pods)))[1] == f"  {line}"


def test_where_status_shows_no_log_of_a_failure_the_logs_are_named() -> None:
    failed = replace(FACTS, phase="Failed", message="svc was not ready within 9 s (--timeout)", engines={})
    for explained, named in ((False, "`kvserving logs svc` shows"), (True, "`kvserving status svc` shows")):
        (finding,) = checks.of_service(replace(failed, explained=explained))
        assert named in finding.fix
        assert ("kvserving status" in finding.fix) == explained


def test_each_sentence_of_a_supervisor_is_a_finding() -> None:
    found = checks.of_service(replace(FACTS, message="the disk is full\nwhat stands here is old"))
    assert [(f.check, f.what) for f in found] == [
        ("service-message", "the disk is full"),
        ("service-message", "what stands here is old"),
    ]


@pytest.mark.parametrize(
    ("role", "number", "what", "why"),
    [
        ("router", 1, "it was started again once; its last exit: signal 9", "requests that went through it failed"),
        (
            "decode",
            2,
            "it was started again 2 times; ",
            "its requests failed, and what it had cached is computed again",
        ),
        ("store", 1, "it was started again once; ", "what it held is gone, and those prefixes are computed again"),
    ],
)
def test_what_a_restart_cost_is_told_by_the_role(role: str, number: int, what: str, why: str) -> None:
    pod = Process(f"svc-{role}-0", role, "Ready", True, number, "signal 9")
    (finding,) = checks.of_service(replace(FACTS, pods=(pod,), engines={}))
    assert finding.what.startswith(what)
    assert finding.why == why


def test_what_has_to_be_said_before_a_proof_stands_above_it() -> None:
    proved = replace(FACTS, proof="verified: KV moved")
    assert list(report.service_lines(proved))[-1] == "  verified: KV moved"
    caveat = "last verified 60 s ago, before svc-decode-0 ended"
    assert list(report.service_lines(replace(proved, caveat=caveat)))[-2:] == [
        f"  {caveat}:",
        "    verified: KV moved",
    ]


def test_a_full_folder_of_a_service_that_runs_is_told_with_the_age_of_its_state() -> None:
    assert told(replace(FACTS, disk_free=2**30)) == {}
    found = told(replace(FACTS, disk_free=0, silent=12.0))
    assert list(found) == ["state-folder-full"]
    assert "what status shows is 12 s old" in found["state-folder-full"]


def test_a_service_that_starts_or_was_not_verified_yet_is_let_be() -> None:
    starting = Process("svc-decode-0", "decode", "Starting", False, 0, "")
    assert told(replace(FACTS, phase="Starting", pods=(starting,), verified=None, engines={})) == {}


def test_counters_are_judged_as_in_a_cluster_and_by_the_roles_that_run() -> None:
    engine = Engine("0.30.0", Series.parse(METRICS))
    found = checks.of_service(replace(FACTS, engines={"svc-decode-0": engine}))
    assert {f.check for f in found if f.severity is Severity.ERROR} == {"decode-recomputes", "engine-version"}
    alone = replace(FACTS, pods=FACTS.pods[1:], engines={"svc-decode-0": replace(engine, version="0.32.0")})
    assert told(alone) == {}
