"""A kubeconfig that does not do says what is missing and the way out, and nothing of its credentials."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvserving_operator.control import programs
from kvserving_operator.control.config import Config
from kvserving_operator.control.credentials import Access, NoCredentials, access

_TOKEN = "t0ken-of-a-user"


def _content(**changed: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "clusters": [{"name": "east", "cluster": {"server": "https://192.0.2.1:6443"}}],
        "users": [{"name": "ada", "user": {"token": _TOKEN}}],
        "contexts": [
            {"name": "prod", "context": {"cluster": "east", "user": "ada", "namespace": "serving"}},
            {"name": "test", "context": {"cluster": "east", "user": "ada"}},
        ],
    }
    return content | changed


def _written(folder: Path, content: object) -> Path:
    file = folder / "kubeconfig"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def _access(file: Path, context: str | None = None) -> Access:
    return asyncio.run(access(Config(kubeconfig=file), context=context))


def _refused(file: Path, context: str | None = None) -> str:
    with pytest.raises(NoCredentials) as told:
        _access(file, context)
    assert _TOKEN not in str(told.value)
    assert str(file) in str(told.value)
    return str(told.value)


def test_a_context_gives_its_server_and_its_namespace(tmp_path: Path) -> None:
    file = _written(tmp_path, _content())
    found: Any = _access(file)
    assert (found.settings.host, found.namespace) == ("https://192.0.2.1:6443", "serving")
    assert _access(file, "test").namespace is None


def test_a_context_that_is_named_does_not_need_a_current_one(tmp_path: Path) -> None:
    file = _written(tmp_path, _content(**{"current-context": "deleted"}))
    found: Any = _access(file, "prod")
    assert (found.settings.host, found.namespace) == ("https://192.0.2.1:6443", "serving")


def test_contexts_of_several_files_are_one_list(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(yaml.safe_dump(_content(contexts=[], **{"current-context": "far"})))
    two.write_text(yaml.safe_dump({"contexts": [{"name": "far", "context": {"cluster": "east", "user": "ada",
                                                                            "namespace": "edge"}}]}))  # fmt: skip
    both = Path(f"{one}:{two}")
    found: Any = _access(both)
    assert (found.settings.host, found.namespace) == ("https://192.0.2.1:6443", "edge")


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(yaml.safe_dump(_content()),), daemon=True)
    writer.start()
    found: Any = _access(pipe)
    writer.join(30)
    assert (found.settings.host, found.namespace) == ("https://192.0.2.1:6443", "serving")
    assert found.settings.api_key["BearerToken"] == f"Bearer {_TOKEN}"


def test_a_server_without_tls_needs_no_user(tmp_path: Path) -> None:
    clusters = [{"name": "east", "cluster": {"server": "http://127.0.0.1:8001"}}]
    contexts = [{"name": "prod", "context": {"cluster": "east"}}]
    found: Any = _access(_written(tmp_path, _content(clusters=clusters, contexts=contexts)))
    assert found.settings.host == "http://127.0.0.1:8001"


@pytest.mark.parametrize(
    ("changed", "context", "said"),
    [
        ({}, "stage", "there is no context stage: name one of prod, test with --context"),
        ({"current-context": "old"}, None, "its current context is missing: old: name one of prod, test"),
        ({"current-context": ""}, None, "no context is its current one: name one of prod, test"),
        ({"contexts": []}, None, "it has no contexts: name a file with --kubeconfig that has"),
        ({"contexts": [{"name": "prod", "context": {"user": "ada"}}]}, None, "context prod names no cluster"),
        ({"clusters": []}, None, "context prod names cluster east, of which there is no server"),
        ({"clusters": [{"name": "east", "cluster": {}}]}, None, "cluster east, of which there is no server"),
        ({"users": []}, None, "context prod names user ada, of which there are no credentials: log in again"),
        ({"users": [{"name": "ada", "user": None}]}, None, "names user ada, of which there are no credentials"),
        ({"contexts": [{"name": "prod", "context": {"cluster": "east"}}]}, None, "context prod names no user: log in"),
    ],
)
def test_what_leads_nowhere_is_named(
    tmp_path: Path, changed: dict[str, Any], context: str | None, said: str
) -> None:  # fmt: skip
    assert said in _refused(_written(tmp_path, _content(**changed)), context)


@pytest.mark.parametrize(
    "user",
    [
        {"token": _TOKEN, "auth-provider": {"name": "gcp"}},
        {"token": _TOKEN, "auth-provider": {"name": "oidc"}},
        {"password": _TOKEN, "auth-provider": {"name": "oidc", "config": {"id-token": _TOKEN}}},
    ],
)
def test_credentials_that_cannot_be_read_are_not_quoted(
    tmp_path: Path, user: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    said = _refused(_written(tmp_path, _content(users=[{"name": "ada", "user": user}])))
    assert "the credentials of its user are not as they should be" in said
    out = capfd.readouterr()
    assert _TOKEN not in out.out + out.err


@pytest.mark.parametrize(
    "content", ["", "kind", "[]", "a: [", "contexts: 3\n", f"users: {_TOKEN}\n", "contexts: [3]\n"]
)
def test_a_file_of_another_shape_is_no_kubeconfig(tmp_path: Path, content: str) -> None:
    assert "it is no kubeconfig" in _refused(_written(tmp_path, content))


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    user = {"client-certificate": "gone.pem", "client-key": "gone.key"}
    said = _refused(_written(tmp_path, _content(users=[{"name": "ada", "user": user}])))
    assert f"{tmp_path}/gone.pem does not exist" in said


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    assert "Is a directory" in _refused(tmp_path)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (f"https://me:{_TOKEN}@192.0.2.1:6443", "'https://***@192.0.2.1:6443' holds credentials: leave them out"),
        (f"https://192.0.2.1:6443/?key={_TOKEN}", "'https://192.0.2.1:6443/?***' holds more than scheme, host, port"),
        ("192.0.2.1:6443", "'192.0.2.1:6443' has no http:// or https://"),
        ("https://192.0.2.1:api", "'https://192.0.2.1:***' has a port that is no number from 1 to 65535"),
        ("https://.example", "'https://.example' has a host name with a part that is empty"),
        (6443, "is no text: write it as https://host:port"),
    ],
)
def test_a_server_that_is_no_address_is_told_without_its_password(tmp_path: Path, server: object, said: str) -> None:
    clusters = [{"name": "east", "cluster": {"server": server}}]
    told = _refused(_written(tmp_path, _content(clusters=clusters)))
    assert f"context prod names cluster east, whose server {said}" in told


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (f"ftp//me:{_TOKEN}@192.0.2.1:x2", "'***@192.0.2.1:***' has no http:// or https://"),
        (f"socks5://me:{_TOKEN}@192.0.2.1:1080", "'socks5://***@192.0.2.1:1080' has no http:// or https://"),
        (3128, "is no text"),
    ],
)
def test_a_proxy_that_is_no_address_is_told_without_its_password(tmp_path: Path, proxy: object, said: str) -> None:
    clusters = [{"name": "east", "cluster": {"server": "https://192.0.2.1:6443", "proxy-url": proxy}}]
    told = _refused(_written(tmp_path, _content(clusters=clusters)))
    assert f"context prod names cluster east, whose proxy-url {said}" in told


def test_a_proxy_may_have_credentials(tmp_path: Path) -> None:
    clusters = [{"name": "east", "cluster": {"server": "https://192.0.2.1", "proxy-url": "http://me:pass@192.0.2.2"}}]
    found: Any = _access(_written(tmp_path, _content(clusters=clusters))).settings
    assert found.proxy == "http://me:pass@192.0.2.2"


def test_a_token_of_a_file_ends_with_its_line_and_has_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{_TOKEN}\n")
    file = _written(tmp_path, _content(users=[{"name": "ada", "user": {"tokenFile": "token"}}]))
    found: Any = _access(file).settings
    assert found.api_key["BearerToken"] == f"Bearer {_TOKEN}"
    (tmp_path / "token").write_text(f"{_TOKEN}\n{_TOKEN}\n")
    assert "the credentials of its user are not as they should be" in _refused(file)


def _plugin(**section: Any) -> dict[str, Any]:
    known = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}
    return _content(users=[{"name": "ada", "user": {"exec": known | section}}])


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"args": ["-c", f"echo {_TOKEN} >&2; exit 7"]}, "sh of kubeconfig {} failed (exit status 7): log in again"),
        ({"command": "no-such-login", "args": [_TOKEN]}, "no-such-login of kubeconfig {} cannot be run (No such file"),
        ({"args": ["-c", f"echo {_TOKEN}"]}, "sh of kubeconfig {} answers with no ExecCredential of its apiVersion"),
        ({"args": ["-c", f"echo 3; echo {_TOKEN} >&2"]}, "sh of kubeconfig {} answers with no ExecCredential"),
    ],
)
def test_a_credential_plugin_that_fails_is_named_without_what_it_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], section: dict[str, Any], said: str
) -> None:
    file = _written(tmp_path, _plugin(**section))
    assert f"credential plugin {said.format(file)}" in _refused(file)
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def _answer(status: object) -> dict[str, Any]:
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return _plugin(args=["-c", f"echo '{json.dumps(said)}'"])


@pytest.mark.parametrize("status", [{}, None, {"token": ""}, {"clientCertificateData": "c"}, _TOKEN])
def test_a_credential_plugin_without_credentials_is_a_failure(tmp_path: Path, status: object) -> None:
    assert "answers with neither a token nor a certificate and its key" in _refused(_written(tmp_path, _answer(status)))


@pytest.mark.parametrize("section", [3, {}, {"command": "sh"}, {"command": "sh", "apiVersion": "v1", "env": [_TOKEN]}])
def test_a_section_of_a_plugin_that_is_none_is_told(tmp_path: Path, section: object) -> None:
    content = _content(users=[{"name": "ada", "user": {"exec": section}}])
    assert "the exec section of its user is not as it should be" in _refused(_written(tmp_path, content))


def test_what_a_credential_plugin_answers_is_used(tmp_path: Path) -> None:
    given = {"token": _TOKEN, "clientCertificateData": "a certificate", "clientKeyData": "a key"}
    found: Any = _access(_written(tmp_path, _answer(given))).settings
    assert found.api_key["BearerToken"] == f"Bearer {_TOKEN}"
    assert (Path(found.cert_file).read_text(), Path(found.key_file).read_text()) == ("a certificate", "a key")


@contextmanager
def _traced(folder: Path) -> Iterator[tuple[Path, int]]:
    """A pipe for a program and all that it starts, and its end to read, which ends when the last of them has."""
    pipe = folder / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield pipe, reader
    finally:
        os.close(reader)


def _wait_end(reader: int) -> bytes:
    """Wait until nobody holds the pipe any more; what was written to it."""
    said = b""
    while select.select([reader], [], [], 30)[0]:
        if not (more := os.read(reader, 100)):
            return said
        said += more
    raise AssertionError("a process of the program runs on")


def _script(pipe: Path, then: str) -> list[str]:
    return ["-c", f"exec 9>{pipe}; echo begun >&9; {then}"]


_GIVEN = json.dumps(
    {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": _TOKEN}}
)


@pytest.mark.parametrize(
    "then",
    [
        f"echo {_TOKEN}; echo {_TOKEN} >&2; sleep 1000",
        "trap '' TERM INT HUP; sleep 1000",
        "sleep 1000 & exit 0",
        f"echo '{_GIVEN}'; sleep 1000 & exit 0",
        "read answer; exec sleep 1000",
    ],
    ids=["hangs", "takes no signals", "leaves a child", "answers and leaves a child", "asks somebody"],
)
def test_a_credential_plugin_that_gives_no_answer_in_time_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], then: str
) -> None:
    monkeypatch.setattr(programs, "SECONDS", 1.5)
    with _traced(tmp_path) as (pipe, reader):
        file = _written(tmp_path, _plugin(args=_script(pipe, then)))
        said = _refused(file)
        assert _wait_end(reader) == b"begun\n"
    assert said.startswith(f"credential plugin sh of kubeconfig {file} gave no answer within 1.5 s and was ended; ")
    assert "log in: do so first, with a kubectl command that uses this kubeconfig, or correct exec.command" in said
    assert "sleep" not in said
    assert capfd.readouterr() == ("", "")


def test_a_process_that_left_the_group_of_its_plugin_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "SECONDS", 1.5)
    with _traced(tmp_path) as (pipe, reader):
        said = _refused(_written(tmp_path, _plugin(args=_script(pipe, "setsid sleep 6 & exit 0"))))
        assert "gave no answer within 1.5 s" in said
        assert os.read(reader, 100) == b"begun\n"
        with pytest.raises(BlockingIOError):
            os.read(reader, 100)


def test_whoever_stops_waiting_for_a_credential_plugin_leaves_none_behind(tmp_path: Path) -> None:
    async def stopped(pipe: Path, reader: int) -> None:
        file = _written(tmp_path, _plugin(args=_script(pipe, "sleep 1000")))
        waiting = asyncio.create_task(access(Config(kubeconfig=file)))
        begun = asyncio.Event()
        asyncio.get_running_loop().add_reader(reader, begun.set)
        await asyncio.wait_for(begun.wait(), 30)
        asyncio.get_running_loop().remove_reader(reader)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with _traced(tmp_path) as (pipe, reader):
        asyncio.run(stopped(pipe, reader))
        assert _wait_end(reader) == b"begun\n"


def test_a_credential_plugin_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    with _traced(tmp_path) as (pipe, reader):
        said = _refused(_written(tmp_path, _plugin(args=_script(pipe, f"yes {_TOKEN}"))))
        assert "answers with no ExecCredential" in said
        _wait_end(reader)


def test_what_a_credential_plugin_says_of_itself_does_not_keep_it_from_answering(tmp_path: Path) -> None:
    noisy = f"yes working | head -c 1000000 >&2; echo '{_GIVEN}'"
    found: Any = _access(_written(tmp_path, _plugin(args=["-c", noisy]))).settings
    assert found.api_key["BearerToken"] == f"Bearer {_TOKEN}"


def test_a_credential_plugin_is_told_that_nobody_answers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    section = {"args": ["-c", f"echo \"$KUBERNETES_EXEC_INFO\" > {tmp_path}/asked; [ -t 0 ] || echo '{_GIVEN}'"]}
    _access(_written(tmp_path, _plugin(**section)))
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked["spec"] == {"interactive": False}
    assert (asked["kind"], asked["apiVersion"]) == ("ExecCredential", "client.authentication.k8s.io/v1")


@pytest.mark.parametrize("args", [[3], ["a\0b"]])
def test_arguments_that_are_none_are_told(tmp_path: Path, args: list[object]) -> None:
    assert "the exec section of its user is not as it should be" in _refused(_written(tmp_path, _plugin(args=args)))


def _google(script: Path, body: str) -> dict[str, Any]:
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o700)
    config = {"cmd-path": str(script), "cmd-args": f"config --token {_TOKEN}"}
    return _content(users=[{"name": "ada", "user": {"auth-provider": {"name": "gcp", "config": config}}}])


def test_the_program_of_a_login_provider_is_asked_for_the_token(tmp_path: Path) -> None:
    given = json.dumps({"credential": {"access_token": _TOKEN, "token_expiry": "2026-01-01T00:00:00Z"}})
    found: Any = _access(_written(tmp_path, _google(tmp_path / "cloud", f"echo '{given}'"))).settings
    assert found.api_key["BearerToken"] == f"Bearer {_TOKEN}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exec sleep 1000", "gave no answer within 1.5 s and was ended"),
        ("echo $*; exit 3", "failed (exit status 3): log in again"),
        ("echo $*", "answers with no credential: log in again"),
    ],
)
def test_the_program_of_a_login_provider_that_fails_is_named_without_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    monkeypatch.setattr(programs, "SECONDS", 1.5)
    file = _written(tmp_path, _google(tmp_path / "cloud", body))
    assert f"credential program {tmp_path}/cloud of kubeconfig {file} {said}" in _refused(file)


def test_a_login_service_that_gives_no_answer_in_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = {"client-id": "c", "client-secret": _TOKEN, "refresh-token": _TOKEN}
        config["idp-issuer-url"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        user = {"auth-provider": {"name": "oidc", "config": config}}
        file = _written(tmp_path, _content(users=[{"name": "ada", "user": user}]))
        said = _refused(file)
    assert said == (
        f"the login service of kubeconfig {file} gave no answer within 0.5 s: log in again, or name another --context"
    )
