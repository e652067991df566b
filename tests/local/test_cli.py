"""The command as a whole: help, usage, exit status."""

from __future__ import annotations

import errno
import sys
import tomllib
from pathlib import Path

import pytest

from kvserving_operator.local.errors import there_are

from .machine import Machine
from .support import ROOT


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


@pytest.mark.parametrize("words", [("logs", "svc"), ("down", "svc"), ("down", "--all"), ("status",), ("version",)])
def test_a_command_of_what_runs_imports_neither_models_nor_builders_nor_a_client(
    machine: Machine, words: tuple[str, ...]
) -> None:
    logs = machine.folder / "state/svc/logs"
    logs.mkdir(parents=True)
    (logs / "svc-decode-0.log").write_text("old\n")
    code = f"import sys; from kvserving_operator.cli import run; status = run({words!r});"
    done = machine.result([sys.executable, "-c", f"{code} print(*sys.modules, file=sys.stderr); sys.exit(status)"])
    assert done.returncode == 0
    loaded = set(done.stderr.splitlines()[-1].split())
    cheap = {"kvserving_operator.plan", "kvserving_operator.plan.labels", "kvserving_operator.plan.names"}
    assert not {name for name in loaded if name.startswith("kvserving_operator.plan")} - cheap
    assert not {"pydantic", "celpy", "aiohttp", "kopf", "kubernetes"} & loaded


def test_wrong_usage_is_exit_status_2(machine: Machine) -> None:
    assert machine("up").returncode == 2
    assert machine("down").returncode == 2
    assert machine("up", machine.file(), "--listen", "nowhere").returncode == 2
    done = machine("stauts")
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr
    for name in ("doc", "docter"):
        assert "Did you mean 'doctor'?" in machine(name).stderr
    assert machine("bogus").stderr.endswith(
        "there is no command 'bogus'. `kvserving --help` lists those that there are\n"
    )


_INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["version"]
{start}
"""
_SCRIPTS = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]["scripts"]
_STARTS = {
    "python -m": "import runpy; runpy.run_module('kvserving_operator', run_name='__main__', alter_sys=True)",
    **{
        name: "from {} import {} as main; sys.exit(main())".format(*entry.split(":"))
        for name, entry in _SCRIPTS.items()
    },
}


@pytest.mark.parametrize("at", ["click", "kvserving_operator.cli.version"])
@pytest.mark.parametrize("start", _STARTS)
def test_a_command_that_is_interrupted_while_it_is_imported_ends_as_later(
    machine: Machine, start: str, at: str
) -> None:
    code = _INTERRUPTED.format(at=at, start=_STARTS[start])
    done = machine.result([sys.executable, "-c", code])
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_names_that_do_not_run_are_exit_status_1(machine: Machine) -> None:
    for command in ("down", "status", "verify", "logs"):
        done = machine(command, "nobody")
        assert done.returncode == 1
        assert "nobody" in done.stderr
    assert machine("down", "--all").stdout == "nothing runs\n"


def test_verify_of_a_name_that_is_not_here_names_the_command_for_clusters(machine: Machine) -> None:
    told = (
        "error: no service qwen on this machine; there are: none; `kvserving up FILE` brings one up."
        " `kubectl kvserving verify qwen` proves an object of a cluster\n"
    )
    assert machine("verify", "qwen").stderr == told


def test_of_many_names_a_message_lists_the_first_and_counts_the_others() -> None:
    names = [f"svc{n:03}" for n in range(300)]
    assert there_are(names) == f"there are: {', '.join(names[:10])} and 290 more"
    assert there_are(names[:10]) == f"there are: {', '.join(names[:10])}"


@pytest.mark.parametrize("arguments", [["--help"], ["validate", "-"], ["doctor", "-"], ["status"]])
def test_a_reader_that_goes_away_is_no_answer_of_no(machine: Machine, arguments: list[str]) -> None:
    code = f"""
import io, os, sys
from kvserving_operator.cli import run
end, pipe = os.pipe()
os.close(end)
os.dup2(pipe, 1)
sys.stdin = io.TextIOWrapper(io.BytesIO({Path(machine.file()).read_bytes()!r}))
sys.exit(run({arguments!r}))
"""
    done = machine.result([sys.executable, "-c", code])
    assert done.returncode == 0
    assert "BrokenPipe" not in done.stderr


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


@pytest.mark.parametrize("command", ["up", "status", "down", "logs"])
def test_a_state_folder_that_is_no_folder_is_exit_status_3_with_the_way_out(machine: Machine, command: str) -> None:
    blocked = machine.folder / "file"
    blocked.write_text("")
    machine.env["KVSERVING_STATE_DIR"] = str(blocked / "state")
    arguments = {"up": [machine.file()], "down": ["svc"], "logs": ["svc"]}.get(command, [])
    done = machine(command, *arguments)
    assert "Traceback" not in done.stderr
    if command == "up":
        assert done.returncode == 3
        assert f"error: the folder of all services, {blocked / 'state'}, cannot be used: Not a directory" in done.stderr
        assert "KVSERVING_STATE_DIR" in done.stderr
    else:
        # Nothing can run in a folder that is not there.
        assert done.returncode == (0 if command == "status" else 1)
        assert blocked.read_text() == ""


def test_a_state_folder_that_may_not_be_written_is_exit_status_3(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvserving_operator import cli
    from kvserving_operator.local.state import ServiceDir

    def refuse(directory: ServiceDir) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(directory.path))

    monkeypatch.setattr(ServiceDir, "create", refuse)
    assert cli.run(["up", machine.file()]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: the folder of all services, {machine.folder / 'state'}, cannot be used: Read-only")
