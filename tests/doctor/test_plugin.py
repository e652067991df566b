"""status and verify of the plugin, against an apiserver and its proxy."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import click
import pytest
from tests.doctor.apiserver import Apiserver, secret
from tests.doctor.commands import PRIVATE, kubectl
from tests.doctor.world import SPEC
from tests.verify.standin import KEY, REVISION, Engine, serving

from kvserving_operator import cli
from kvserving_operator.cli import plugin


def test_status_shows_objects_and_one_with_its_pods(server: Apiserver, capsys: pytest.CaptureFixture[str]) -> None:
    server.objects["kvservings"].append(
        {"metadata": {"name": "new", "namespace": "other"}, "spec": {"model": {"uri": PRIVATE}}}
    )
    assert kubectl("status") == 0
    said = capsys.readouterr().out
    assert "qwen" in said
    assert "new" not in said
    assert kubectl("status", "-A") == 0
    assert "not looked at by an operator" in capsys.readouterr().out
    assert kubectl("status", "qwen") == 0
    said = capsys.readouterr().out
    for word in ("TransferVerified", "qwen-prefill-", "Ready", "0.33.0"):
        assert word in said
    assert kubectl("status", "qwen", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {pod["role"] for pod in shown["pods"]} == {"prefill", "decode", "router", "store"}
    assert "spec" not in shown
    assert kubectl("status", "-n", "empty") == 0
    assert capsys.readouterr().out == "no objects in namespace empty\n"


def test_what_several_conditions_say_stands_once(server: Apiserver, capsys: pytest.CaptureFixture[str]) -> None:
    message = "the engine of qwen-decode-0 finds no model"
    server.objects["kvservings"][0]["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "reason": "PodFailing", "message": message},
        {"type": "Available", "status": "True", "reason": "Serving", "message": ""},
        {"type": "DecodeReady", "status": "False", "reason": "PodFailing", "message": message},
        {"type": "Progressing", "status": "False", "reason": "Waiting", "message": ""},
    ]
    assert kubectl("status", "qwen") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"Ready False PodFailing {message}" in lines
    assert "DecodeReady False PodFailing as Ready" in lines
    assert "Progressing False Waiting" in lines
    assert kubectl("status", "qwen", "-o", "json") == 0
    assert capsys.readouterr().out.count(message) == 2


@pytest.mark.parametrize("option", ["-n", "--namespace", "--context"])
def test_an_option_before_the_command_is_told_where_it_belongs(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl(option, "prod", "status") == 2
    said = capsys.readouterr().err
    assert f"{option} is no option of `kubectl kvserving` itself: those of a command come after its name" in said
    assert f"`kubectl kvserving status {option} ...`" in said
    assert kubectl("--debgu", "status") == 2
    assert "--debug" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("logs", "there is no command 'logs' here: `kubectl logs -l kvserving.dev/name=NAME,kvserving.dev/role=decode"),
        ("down", "there is no command 'down' here: `kubectl delete kvs NAME`"),
        ("statsu", "there is no command 'statsu'. Did you mean 'status'?"),
    ],
)
def test_a_command_that_there_is_not_is_answered_with_the_one_that_does_it(
    command: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kubectl(command, "qwen") == 2
    assert told in capsys.readouterr().err


def test_every_command_of_a_machine_that_the_plugin_lacks_is_named_elsewhere() -> None:
    ours = cli.kvserving.list_commands(click.Context(cli.kvserving))
    there = plugin.plugin.list_commands(click.Context(plugin.plugin))
    assert set(ours) - set(there) <= set(plugin._ELSEWHERE)
    assert set(there).isdisjoint(plugin._ELSEWHERE)


@pytest.fixture
def engines(server: Apiserver) -> Iterator[list[Engine]]:
    """Stand-in engines and a router behind the apiserver's proxy."""
    names = {pod["metadata"]["labels"]["kvserving.dev/role"]: pod["metadata"]["name"] for pod in server.objects["pods"]}
    made = [Engine(names["prefill"], "prefill"), Engine(names["decode"], "decode")]
    for pod in server.objects["pods"]:
        pod["metadata"]["labels"]["kvserving.dev/revision"] = REVISION
    server.objects["kvservings"][0]["status"]["revision"] = REVISION
    server.objects["secrets"] = [secret("qwen-keys", {"signing": KEY.decode(), "router-admin": "x"})]
    loop, up, down = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serving(made) as (endpoints, router, _):
            server.forward |= {endpoint.pod: endpoint.url for endpoint in endpoints}
            server.forward[names["router"]] = router.url
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert up.wait(30)
    yield made
    loop.call_soon_threadsafe(down.set)
    thread.join(30)


def test_verify_proves_the_transfer_through_the_proxy(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kubectl("verify", "qwen") == 0
    said = capsys.readouterr()
    assert "verified: KV moved from prefill to decode in 1 pair of engines and through the router" in said.out
    assert KEY.decode() not in said.out + said.err
    assert engines[1].seen[0]["kv_transfer_params"]


def test_verify_says_so_when_decode_recomputes_and_what_the_operator_said(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    engines[1].faults = frozenset({"recomputes"})
    assert kubectl("verify", "qwen", "-o", "json") == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "RecomputingKV"
    assert kubectl("verify", "qwen") == 1
    said = capsys.readouterr()
    assert "not verified (RecomputingKV)" in said.out
    assert "the operator, which needs no proxy, says: Ready: fine" in said.err


def test_verify_needs_ready_engines_a_key_and_rights(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden.add("secrets")
    assert kubectl("verify", "qwen") == 3
    assert "you may not get secrets prod/qwen-keys" in capsys.readouterr().err
    server.forbidden.clear()
    server.objects["secrets"] = []
    assert kubectl("verify", "qwen") == 1
    assert "Secret qwen-keys, whose key signs probes, does not exist" in capsys.readouterr().err
    server.objects["secrets"] = [{"metadata": {"namespace": "prod", "name": "qwen-keys"}, "data": {}}]
    assert kubectl("verify", "qwen") == 1
    assert "qwen-keys holds no signing key yet" in capsys.readouterr().err
    server.objects["kvservings"][0]["status"]["revision"] = "feed"
    assert kubectl("verify", "qwen") == 1
    assert "no ready decode and no ready prefill pod of revision feed" in capsys.readouterr().err
    for command in ("verify", "status"):
        assert kubectl(command, "quen") == 1
        assert capsys.readouterr().err == "error: no KVServing quen in namespace prod; there are: qwen\n"


def test_a_router_that_wants_a_clients_key_is_left_out_of_the_proof(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects["kvservings"][0]["spec"] = {**SPEC, "router": {"apiKeySecretRef": "clients"}}
    assert kubectl("verify", "qwen") == 0
    said = capsys.readouterr()
    assert "the router is left out" in said.err
    assert "through the router" not in said.out


@pytest.mark.parametrize("name", ["", "Qwen", "qwen?watch=1", "..", "a" * 254])
@pytest.mark.parametrize("command", ["status", "verify", "doctor", "rollout status", "rollout history", "rollout undo"])
def test_what_is_no_name_is_wrong_usage_before_a_cluster_is_asked(
    capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    assert kubectl(*command.split(), name) == 2
    assert f"{name[:60]!r} is no name" in capsys.readouterr().err
    assert kubectl(*command.split(), "qwen", "-n", "prod/x") == 2
    assert "'prod/x' is no name" in capsys.readouterr().err


def test_help_and_unknown_commands_of_the_plugin_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl("--help") == 0
    said = capsys.readouterr().out
    assert "Usage: kubectl kvserving" in said
    for word in ("status", "verify", "render", "doctor", "validate"):
        assert word in said
    assert " up " not in said
    assert kubectl("statsu") == 2
    assert "Did you mean 'status'?" in capsys.readouterr().err
