"""Whether a proof still holds: judged by what ended since it began, and told alike by every command."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest

from kvserving_operator import cli
from kvserving_operator.local import procfs, proof
from kvserving_operator.local.state import DEGRADED, LOST, READY, PodState, ServiceDir, State

NOW = 1_000_000.0
LINES = ["ok     svc-prefill-0 -> svc-decode-0  16 tokens", "verified: KV moved"]


def pod(role: str, **more: Any) -> PodState:
    return PodState(f"svc-{role}-0", role, "127.1.2.3", 8000, **{"ready": True, "phase": "Ready", **more})


def state(*pods: PodState, phase: str = READY, now: float = NOW, supervisor: Any = None, **proved: Any) -> State:
    verification = {"ok": True, "revision": "r", "began": now - 70, "at": now - 60, "lines": LINES, **proved}
    return State(
        "svc", "r", phase, {"url": None}, sys.executable, "tiny", pods, supervisor or {}, verification, updated=now
    )


PREFILL, DECODE, ROUTER, STORE = pod("prefill"), pod("decode"), pod("router"), pod("store")
DOWN = {"ready": False, "phase": "NotReady"}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (state(PREFILL, DECODE, ROUTER), ""),
        (state(pod("prefill", ended=NOW - 71), DECODE), ""),
        (state(PREFILL, DECODE, pod("store", ended=NOW, **DOWN)), ""),
        (state(PREFILL, pod("decode", ended=NOW - 3)), ", before svc-decode-0 ended"),
        (state(PREFILL, pod("decode", ended=NOW - 3, **DOWN)), ", before svc-decode-0 ended"),
        (state(PREFILL, pod("decode", ended=NOW - 65)), ", before svc-decode-0 ended"),
        (state(PREFILL, DECODE, pod("router", ended=NOW - 3)), ", before svc-router-0 ended"),
        (
            state(pod("prefill", ended=NOW), pod("decode", ended=NOW), pod("router", **DOWN)),
            ", before svc-prefill-0 and svc-decode-0 ended",
        ),
        (
            state(PREFILL, pod("decode", ended=NOW - 71, **DOWN)),
            "; svc-decode-0 has not ended, and is not ready now",
        ),
        (
            state(pod("prefill", **DOWN), pod("decode", **DOWN)),
            "; svc-prefill-0 and svc-decode-0 have not ended, and are not ready now",
        ),
        (state(PREFILL, DECODE, revision="before"), ", before the plan changed"),
        (state(PREFILL, pod("decode", ended=NOW), phase=LOST), ", before its supervisor was killed"),
    ],
)
def test_a_proof_is_past_when_what_it_is_about_ended_or_changed_since_it_began(now: State, said: str) -> None:
    assert proof.caveat(now, NOW) == (f"last verified 60 s ago{said}" if said else "")


def test_what_failed_or_was_not_tried_is_no_proof() -> None:
    assert proof.caveat(state(PREFILL, pod("decode", ended=NOW), ok=False), NOW) == ""
    assert proof.caveat(State("svc", "r", READY, {}, "", "", (pod("decode", **DOWN),), {}), NOW) == ""


def test_the_state_of_a_former_release_is_judged_by_the_end_of_its_proof() -> None:
    old = state(PREFILL, pod("decode", ended=NOW - 65))
    assert old.verification is not None
    del old.verification["began"], old.verification["revision"]
    assert proof.caveat(old, NOW) == ""


@pytest.mark.parametrize(
    "decode", [{}, {"ended": 4e9}, {"ended": 4e9, **DOWN}, DOWN], ids=["holds", "replaced", "ended", "not ready"]
)
def test_status_and_doctor_say_the_same_of_a_proof(
    directory: ServiceDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    decode: dict[str, Any],
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(directory.base))
    me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
    directory.create()
    directory.write(state(pod("prefill"), pod("decode", **decode), phase=DEGRADED, now=now, supervisor=me))
    cli.run(["status", "svc"])
    status = capsys.readouterr().out.splitlines()
    cli.run(["doctor", "svc"])
    doctor = capsys.readouterr().out.splitlines()
    heads = [[line for line in lines if "last verified" in line] for lines in (status, doctor)]
    assert heads[0] == heads[1]
    assert len(heads[0]) == bool(decode)
    proved = f"{'  ' * (1 + bool(decode))}verified: KV moved"
    assert proved in status
    assert proved in doctor
