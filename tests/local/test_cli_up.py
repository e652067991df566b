"""``kvserving up``, as users run it: real plan, real supervisor, stand-ins for vLLM and smg."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvserving_operator.local import procfs

from .machine import Machine
from .support import nothing_left


def test_up_detached_status_logs_verify_and_down(machine: Machine) -> None:
    file = machine.file()
    up = machine.result(machine.up(file, "--detach"))
    # The stand-ins answer no prompt, so nothing is proved: that is an answer, and the service stays.
    assert up.returncode == 1, up.stderr
    assert "Traceback" not in up.stderr
    assert "spec.router.replicas" not in up.stderr, "the file does not ask for routers"
    assert f"svc  Degraded  http://127.0.0.1:{machine.port}  model tiny" in up.stdout
    assert "not verified" in up.stdout
    assert re.search(
        r"^  checked at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, \d+ s ago$", machine("status", "svc").stdout, re.MULTILINE
    )
    assert f"curl http://127.0.0.1:{machine.port}/v1/models" in up.stdout
    state = machine.state()
    assert [p["role"] for p in state["pods"]] == ["prefill", "decode", "router"]
    assert all(p["ready"] for p in state["pods"])
    assert state["verification"]["ok"] is False

    table = machine("status").stdout
    assert "POD" in table
    assert "svc-decode-0" in table
    assert "/logs/svc-decode-0.log" in machine("status", "svc", "-o", "wide").stdout
    assert "Loading weights took" in machine("logs", "svc", "decode").stdout
    assert "svc-prefill-0 | Loading weights took" in machine("logs", "svc").stdout
    assert machine("verify", "svc").returncode == 1

    second = machine.result(machine.up(file))
    assert second.returncode == 3
    assert f"already running: process {state['supervisor']['pid']}" in second.stderr

    keys = [p.read_text().strip() for p in (machine.folder / "state/svc/secrets/svc-keys").iterdir()]
    shown = [Path(f"/proc/{p['pid']}/cmdline").read_text() for p in state["pods"]]
    logs = [p.read_text() for p in (machine.folder / "state/svc/logs").iterdir()]
    for key in keys:
        assert len(key) == 64
        assert not any(key in text for text in (*shown, *logs, json.dumps(state), up.stdout, up.stderr))

    down = machine("down", file)
    assert down.returncode == 0
    assert nothing_left([state["instance"]])
    assert machine("status", "svc").returncode == 1
    assert machine("logs", "svc", "--tail", "1").returncode == 0


HURRY = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), "Ctrl-C stops at once") | {
    signal.SIGINT: "Ctrl-C again stops at once"
}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 1), (signal.SIGHUP, 1)])
def test_a_signal_to_up_in_the_foreground_stops_everything(
    machine: Machine, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        machine.up(machine.file()), env=machine.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stdout is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "svc: Degraded" in line:
            break
    else:
        raise AssertionError("".join(lines))
    instance = machine.instance
    assert len(procfs.instance_processes(instance)) == 3
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Ctrl-C stops it." in out
    assert out.endswith(f"svc is stopped; its logs stay in {machine.folder / 'state/svc/logs'}\n")
    assert f"svc: Stopping ({HURRY[number]})\n" in err
    assert "Traceback" not in err
    assert nothing_left([instance])
    assert not (machine.folder / "state/svc/state.json").exists()


@pytest.mark.parametrize(
    ("number", "options", "status"),
    [
        (signal.SIGINT, (), 130),
        (signal.SIGINT, ("--detach",), 130),
        (signal.SIGTERM, ("--detach",), 143),
        (signal.SIGHUP, ("--detach",), 129),
    ],
)
def test_a_signal_while_engines_load_stops_everything(
    machine: Machine, number: signal.Signals, options: tuple[str, ...], status: int
) -> None:
    process = subprocess.Popen(
        machine.up(machine.file("--never-healthy"), *options),
        env=machine.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "svc-decode-0: Loading" in line:
            break
    instance = machine.instance
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert f"svc: Stopping ({HURRY[number]})\n" in err
    assert "svc-decode-0: Stopped" in err
    assert out == f"svc is stopped; its logs stay in {machine.folder / 'state/svc/logs'}\n"
    assert nothing_left([instance])
    assert not (machine.folder / "state/svc/state.json").exists()


def test_a_start_that_fails_shows_the_last_lines_and_no_traceback(machine: Machine) -> None:
    done = machine.result(machine.up(machine.file("--exit-after=0, --exit-code=9"), "--detach"))
    assert done.returncode == 1
    assert "ended 3 times before it was ready: exit status 9" in done.stderr
    assert "| RuntimeError: the stand-in was told to fail" in done.stderr
    assert "The whole log: " in done.stderr
    assert "Traceback" not in done.stderr
    shown = machine("status", "svc")
    assert "svc  Failed" in shown.stdout
    assert nothing_left([machine.instance])


def test_a_tier_that_workers_own_reaches_the_engines_and_is_left_out_on_demand(machine: Machine) -> None:
    file = machine.file(more="  cache: {l1: {size: 1Gi, owner: worker}}")
    machine.result(machine.up(file, "--detach"))
    (pid,) = (p["pid"] for p in machine.state()["pods"] if p["role"] == "prefill")
    assert b"WorkerCacheConnector" in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert machine("down", "svc").returncode == 0
    up = machine.result(machine.up(file, "--without-tiers", "--detach"))
    assert "spec.cache is left out: --without-tiers" in up.stderr
    assert all(p["ready"] for p in machine.state()["pods"])


def test_what_this_machine_lacks_is_exit_status_3(machine: Machine) -> None:
    for args, word in (
        (("--engine-python", "/no/such"), "--engine-python: /no/such is not a program"),
        (("--router-python", sys.executable + "-none"), "--router-python"),
        (("--engine-python", "/bin/false"), "/bin/false does not run as Python: exit status 1\n"),
        (("--engine-python", "/bin/true"), "/bin/true does not run as Python: it prints something else"),
    ):
        done = machine.result(machine.up(machine.file(), *args))
        assert done.returncode == 3
        assert word in done.stderr
    (machine.model / "config.json").unlink()
    done = machine.result(machine.up(machine.file()))
    assert done.returncode == 3
    assert f"spec.model.uri: {machine.model} has no config.json" in done.stderr
    assert not (machine.folder / "state/svc").exists()


@pytest.mark.parametrize(
    ("role", "more", "told"),
    [
        (" {replicas: 0}", "", "spec.prefill.replicas and spec.decode.replicas are 0: "),
        (" {replicas: 1}", "  router: {type: none}\n  suspend: true\n", "spec.suspend is true: nothing would run."),
    ],
)
def test_a_start_that_could_never_end_is_refused(machine: Machine, role: str, more: str, told: str) -> None:
    file = Path(machine.file(more=more))
    head, _, _ = file.read_text().partition("  prefill:")
    file.write_text(f"{head}  prefill:{role}\n  decode:{role}\n{more}")
    done = machine.result(machine.up(str(file), "--timeout", "20"))
    assert done.returncode == 3
    assert f"error: {told}" in done.stderr
    assert not (machine.folder / "state/svc").exists()


def test_a_refused_start_keeps_the_logs_of_the_last_run(machine: Machine) -> None:
    log = machine.folder / "state/svc/logs/svc-decode-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("old\n")
    assert machine.result(machine.up(machine.file(), "--engine-python", "/no/such")).returncode == 3
    assert log.read_text() == "old\n"
