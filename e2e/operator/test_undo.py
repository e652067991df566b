"""``kvserving rollout`` as a process: it follows a rollout that fails, and returns to the revision before it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.pod_script import never_ready
from e2e.operator.objects import condition, differences, eventually, path_of, serving
from e2e.operator.waiting import at_generation, settle, wait_for

from kvserving_operator.plan.history import KEPT

_SECONDS = 180


@dataclass
class Answer:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvserving_operator", "rollout", *arguments]


def environment(kubeconfig: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}


Run = Callable[..., Answer]


@pytest.fixture
def run(plane: ControlPlane, namespace: str) -> Run:
    """Runs ``kvserving rollout`` for the object of the test, as an administrator or with a kubeconfig of its own."""
    admin = plane.kubeconfig()

    def asked(*arguments: str, kubeconfig: Path = admin) -> Answer:
        done = subprocess.run(
            command(*arguments, "-n", namespace),
            env=environment(kubeconfig),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return asked


def states(answer: Answer) -> dict[str, str]:
    """What ``history`` says of each revision."""
    return {entry["revision"]: entry["state"] for entry in json.loads(answer.out)}


def test_a_rollout_that_fails_is_told_and_undo_makes_the_former_revision_ready_again(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, verdict: Path, run: Run
) -> None:
    start()
    obj = serving(namespace)
    first = settle(plane, obj)["status"]["revision"]
    answer = run("status", "qwen")
    assert answer == Answer(
        0,
        f"qwen is rolled out: revision {first} serves; every role is ready and the transfer is verified\n",
        "",
    )

    verdict.write_text("recomputed")
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": "0.32.0"}, "decode": {"replicas": 3}}})
    answer = run("status", "qwen", "--timeout", "2m")
    assert answer.status == 1, answer
    found = plane.api.get(path_of(namespace))
    assert condition(found, "Ready")["reason"] == "RolloutFailed"
    second = found["status"]["updatingRevision"]
    why = f"qwen is not rolled out: the rollout to revision {second} failed: RecomputingKV: "
    assert answer.lines[-3].startswith(why), answer.out
    assert answer.lines[-2:] == [
        f"revision {first} serves meanwhile",
        f"Way out: change the spec, or `kvserving rollout undo qwen -n {namespace}`",
    ]
    assert any(line.split()[:2] == [first[:8], "yes"] for line in answer.lines), answer.out
    assert states(run("history", "qwen", "-o", "json")) == {second: "failed", first: "serving"}

    verdict.write_text("ok")
    dry = run("undo", "qwen", "--dry-run")
    assert dry.lines[0].startswith(f"qwen returns to revision {first}, first seen 20"), dry
    assert dry.lines[1:] == ["  spec.engine.version", "nothing is written (--dry-run)"]
    assert plane.api.get(path_of(namespace))["metadata"]["generation"] == 2
    answer = run("undo", "qwen")
    assert answer.lines[-2:] == [
        "written as generation 3",
        f"`kvserving rollout status qwen -n {namespace}` follows it",
    ], answer
    answer = run("status", "qwen", "--timeout", "2m")
    assert answer.status == 0, answer
    found = wait_for(plane, obj, "Ready")
    assert found["metadata"]["generation"] == found["status"]["observedGeneration"] == 3
    assert found["status"]["revision"] == first
    # The operator had chosen the engine of the first revision; without a name it would go on with the second's.
    assert found["spec"] == {**obj["spec"], "engine": {"version": "0.33.0"}, "decode": {"replicas": 3}}
    writers = {entry["manager"] for entry in found["metadata"]["managedFields"] if "f:spec" in entry["fieldsV1"]}
    assert "kvserving" in writers
    eventually(lambda: differences(plane, namespace), lambda left: not left, what="children as planned")
    shown = run("history", "qwen").lines
    assert [line.split()[0] for line in shown] == ["REVISION", second, first]
    assert list(states(run("history", "qwen", "-o", "json")).values()) == ["kept", "serving"]

    # Undo of the undo, by its first digits.
    dry = run("undo", "qwen", "--to-revision", second[:6], "--dry-run")
    assert dry.lines[1:] == ["  spec.engine.version", "nothing is written (--dry-run)"], dry


def test_undo_needs_the_right_to_update_and_waiting_ends_with_an_interrupt(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, run: Run
) -> None:
    start()
    first = settle(plane, serving(namespace))["status"]["revision"]
    kubelet.script(
        lambda pod: never_ready() if pod["metadata"]["labels"].get("kvserving.dev/revision") != first else None
    )
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": "0.32.0"}}})
    at_generation(plane, namespace, 2)
    answer = run("status", "qwen", "--timeout", "1s")
    told = [line.partition(":")[0] for line in answer.lines[-2:]]
    assert (answer.status, told) == (1, ["qwen is not rolled out after 1 s", "Way out"]), answer
    waiting = subprocess.Popen(
        # Whatever runs the tests may ignore the signal, which children inherit.
        ["env", "--default-signal=INT", *command("status", "qwen", "-n", namespace)],
        env={**environment(plane.kubeconfig()), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline().split()[0] == "REVISION"
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, errors.strip()) == (130, "interrupted")

    rules = [
        {"apiGroups": ["kvserving.dev"], "resources": ["kvservings"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
    ]
    reader = plane.service_account(namespace, "reader", rules)
    eventually(
        lambda: plane.allowed(reader.name, "get", "kvservings", group="kvserving.dev", namespace=namespace),
        bool, what="the reader's rights",
    )  # fmt: skip
    kubeconfig = plane.kubeconfig(reader)
    assert first in states(run("history", "qwen", "-o", "json", kubeconfig=kubeconfig))
    answer = run("undo", "qwen", kubeconfig=kubeconfig)
    assert answer.status == 3
    assert f"you may not update kvservings.kvserving.dev {namespace}/qwen: ask for the right to" in answer.err
    assert plane.api.get(path_of(namespace))["metadata"]["generation"] == 2
    assert run("undo", "qwen").status == 0
    assert run("status", "qwen", "--timeout", "2m").status == 0


def test_attempts_that_never_served_do_not_cost_the_spec_of_the_one_that_serves(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, run: Run
) -> None:
    start()
    obj = serving(namespace)
    first = settle(plane, obj)["status"]["revision"]
    kubelet.script(
        lambda pod: never_ready() if pod["metadata"]["labels"].get("kvserving.dev/revision") != first else None
    )
    tried: set[str] = set()
    for number in range(KEPT + 2):
        plane.api.merge(path_of(namespace), {"spec": {"engine": {"kv": {"hashSeed": str(number + 7)}}}})
        found = plane.api.wait(
            path_of(namespace),
            lambda o: o is not None and o["status"].get("updatingRevision") not in (None, first, *tried),
            what="another revision coming up",
            timeout=40,
        )
        assert found is not None
        tried.add(found["status"]["updatingRevision"])
    told = eventually(
        lambda: states(run("history", "qwen", "-o", "json")),
        lambda told: len(told) <= KEPT + 2,
        what="the oldest of the attempts is forgotten",
    )
    assert told.pop(first) == "serving"
    assert list(told.values()) == ["coming up", *["kept"] * KEPT]
    answer = run("undo", "qwen")
    assert answer.lines[0].startswith(f"qwen returns to revision {first}, first seen 20"), answer
    assert run("status", "qwen", "--timeout", "2m").status == 0
    assert wait_for(plane, obj, "Ready")["status"]["revision"] == first
