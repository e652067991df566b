"""What ``kvserving cache`` says of a store's limit, and what a purge asks and refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator import cli
from kvserving_operator.local import cache, client
from kvserving_operator.local.state import READY, State

HERE, OTHER = "ab" * 16, "cd" * 16
HELD = [{"namespace": HERE, "objects": 3, "bytes": 2**20, "about": {"model": "tiny"}}]


def serve(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    namespaces: list[dict[str, Any]],
    limit: int = 2**30,
    size: int = 0,
    free: int | None = None,
) -> None:
    """Let a service have a store with these namespaces, which removes nothing."""
    held = {"namespaces": namespaces, "used_bytes": 2**20, "limit_bytes": limit, "free_bytes": free}
    python = folder / "python"
    told = {"usage": held, "purge": {"objects": 0, "bytes": 0}}
    cases = "".join(f"{word}) printf '%s' {shlex.quote(json.dumps(said))};;" for word, said in told.items())
    python.write_text(f'#!/bin/sh\ncase "$3" in {cases} esac\n')
    python.chmod(0o755)
    state = State("svc", "r", READY, {}, "python", "tiny", (), {}, store_size=size)
    monkeypatch.setattr(client, "running", lambda _name: state)
    monkeypatch.setattr(cache, "access", lambda _state: cache.Access(("redis://a:1",), None, str(python), {}))


@pytest.mark.parametrize(
    ("limit", "size", "free", "told"),
    [
        (512 * 2**20 * 85 // 100, 512 * 2**20, None, "store: 1Mi of 435Mi (85 % of 512Mi)\n"),
        (512 * 2**20, 512 * 2**20, 511 * 2**20, "store: 1Mi of 512Mi\n"),
        (
            2**30 * 85 // 100,
            2**30,
            2**21,
            "store: 1Mi of 870Mi (85 % of 1Gi); its disk has 2Mi left, so that it holds 3Mi at most\n",
        ),
        (2**30, 2**30, None, "store: 1Mi of 1Gi\n"),
        (2**30, 0, None, "store: 1Mi of 1Gi\n"),
    ],
)
def test_the_limit_of_a_store_is_told_with_its_share_of_the_size_and_the_disk_where_that_has_less(
    limit: int,
    size: int,
    free: int | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serve(tmp_path, monkeypatch, namespaces=HELD, limit=limit, size=size, free=free)
    assert cli.run(["cache", "usage", "svc"]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("namespace", ["deadbeef", "", "AB" * 16, "ab" * 17])
def test_what_is_no_namespace_is_wrong_usage(namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["cache", "purge", "svc", "--namespace", namespace, "--yes"]) == 2
    told = f"Invalid value for '--namespace': {namespace!r} is no namespace: it has 32 hex digits"
    assert told in capsys.readouterr().err


def test_a_purge_without_a_namespace_lists_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(tmp_path, monkeypatch, namespaces=HELD)
    assert cli.run(["cache", "purge", "svc"]) == 2
    assert f"--namespace is missing; the store has: {HERE}\n" in capsys.readouterr().err
    serve(tmp_path, monkeypatch, namespaces=[])
    assert cli.run(["cache", "purge", "svc"]) == 2
    assert "the store has: none\n" in capsys.readouterr().err


@pytest.mark.parametrize("answered", [(), ("--yes",)])
def test_a_purge_of_what_is_not_there_lists_what_is(
    answered: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(tmp_path, monkeypatch, namespaces=HELD)
    assert cli.run(["cache", "purge", "svc", "--namespace", OTHER, *answered]) == 1
    assert f"the store has no namespace {OTHER}; it has: {HERE}\n" in capsys.readouterr().err


def test_a_question_that_nobody_can_answer_names_the_option_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(tmp_path, monkeypatch, namespaces=HELD)
    with Path("/dev/null").open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert cli.run(["cache", "purge", "svc", "--namespace", HERE]) == 2
    said = capsys.readouterr().err
    assert f"Remove {HERE} (3 objects, 1Mi, tiny)? [y/N]" in said
    assert said.endswith("Error: no answer can be given here: use --yes\n")


def test_every_question_is_asked_where_a_lack_of_an_answer_is_told() -> None:
    sources = Path(cli.__file__).parent
    asking = {file.name for file in sources.glob("*.py") if "click.confirm(" in file.read_text()}
    assert asking == {"question.py"}
    assert not [file.name for file in sources.glob("*.py") if "click.prompt(" in file.read_text()]
