"""``rollout status``, ``history`` and ``undo`` against a server that answers as an apiserver."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.cli.rollouts import Body, condition, config_map, failed, revision, rolling, served, spec, unreadable
from tests.doctor.apiserver import Apiserver, leave, running

from kvserving_operator import cli
from kvserving_operator.cli import rollout
from kvserving_operator.cli.plugin import PROGRAM, plugin

FIRST, SECOND, THIRD = spec("0.33.0"), spec("0.32.0"), spec("0.30.0")
PRIVATE = "s3cr3t-that-nobody-may-see"


@dataclass
class Cluster(Apiserver):
    """An apiserver that also takes new states of an object. ``coming`` are those that it has after each read."""

    coming: list[Body] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    refusal: Body | None = None

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_put("/apis/{group}/{version}/namespaces/{namespace}/{plural}/{name}", self._put)
        return app

    @property
    def stored(self) -> Body:
        return self.objects["kvservings"][0]

    async def _get(self, request: web.Request) -> web.Response:
        answer = await super()._get(request)
        if request.match_info["plural"] == "kvservings" and self.coming:
            self.objects["kvservings"] = [self.coming.pop(0)]
        return answer

    async def _put(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        body = await request.json()
        if self.refusal is not None:
            return web.json_response(self.refusal, status=self.refusal["code"])
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            return web.json_response({"reason": "Conflict", "details": {"name": "qwen"}}, status=409)
        body["metadata"]["generation"] += 1
        self.objects["kvservings"] = [body]
        return web.json_response(body)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An object that has gone from ``FIRST`` over ``SECOND`` to ``THIRD``; KUBECONFIG names its cluster."""
    made = Cluster()
    made.objects["kvservings"] = [served(THIRD)]
    made.objects["configmaps"] = [config_map(FIRST, 1), config_map(SECOND, 2), config_map(THIRD, 3)]
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path / "services"))
    monkeypatch.setattr(rollout, "_POLL_SECONDS", 0.01)
    with running(made, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield made


@dataclass
class Answer:
    status: int
    out: str
    err: str


Ask = Callable[..., Answer]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs ``kvserving rollout`` with arguments."""

    def asked(*arguments: str) -> Answer:
        status = cli.run(("rollout", *arguments))
        said = capsys.readouterr()
        return Answer(status, said.out, said.err)

    return asked


def test_status_tells_each_step_once_and_ends_with_the_last(cluster: Cluster, ask: Ask) -> None:
    first, *cluster.coming = (
        rolling(FIRST, SECOND),
        *[rolling(FIRST, SECOND, ready=1)] * 3,
        rolling(FIRST, SECOND, ready=2),
        served(SECOND),
    )
    cluster.objects["kvservings"] = [first]
    answer = ask("status", "qwen")
    old, new = revision(FIRST), revision(SECOND)
    assert answer.out.splitlines() == [
        "  REVISION  TRAFFIC  TRANSFER  PREFILL  DECODE  ROUTER",
        f"  {new[:8]}  no       unknown   0/1      0/2     2/2",
        f"  {old[:8]}  yes      verified  1/1      2/2     2/2",
        f"revision {new}: 0 of 2 decode ready",
        "  REVISION  TRAFFIC  TRANSFER  PREFILL  DECODE  ROUTER",
        f"  {new[:8]}  no       unknown   1/1      1/2     2/2",
        f"  {old[:8]}  yes      verified  1/1      2/2     2/2",
        f"revision {new}: 1 of 2 decode ready",
        "  REVISION  TRAFFIC  TRANSFER  PREFILL  DECODE  ROUTER",
        f"  {new[:8]}  no       unknown   1/1      2/2     2/2",
        f"  {old[:8]}  yes      verified  1/1      2/2     2/2",
        f"revision {new}: 2 of 2 decode ready",
        f"qwen is rolled out: revision {new} serves; every role is ready and the transfer is verified",
    ]
    assert (answer.status, answer.err) == (0, "")
    assert cluster.writes == []


def test_a_failed_rollout_is_exit_status_1_with_the_way_out(cluster: Cluster, ask: Ask) -> None:
    cluster.objects["kvservings"] = [failed(FIRST, SECOND)]
    answer = ask("status", "qwen")
    assert answer.status == 1
    assert answer.out.splitlines()[-3:] == [
        "qwen is not rolled out: KV is computed again",
        f"revision {revision(FIRST)} serves meanwhile",
        "Way out: change the spec, or `kvserving rollout undo qwen -n prod`",
    ]
    assert ask("status", "qwen", "--no-wait").status == 1


def test_a_failed_rollout_names_no_revision_as_serving_where_none_does(cluster: Cluster, ask: Ask) -> None:
    stopped = failed(FIRST, SECOND)
    stopped["status"]["conditions"][1] = condition("Available", "False", "Starting")
    cluster.objects["kvservings"] = [stopped]
    assert "serves meanwhile" not in ask("status", "qwen").out


def test_the_present_state_is_told_without_waiting(cluster: Cluster, ask: Ask) -> None:
    cluster.objects["kvservings"] = [rolling(FIRST, SECOND)]
    answer = ask("status", "qwen", "--no-wait")
    assert answer.status == 0
    assert answer.out.splitlines()[-1] == f"revision {revision(SECOND)}: 0 of 2 decode ready"
    said = json.loads(ask("status", "qwen", "--no-wait", "-o", "json").out)
    assert (said["outcome"], said["revision"], said["updatingRevision"]) == (
        "waiting", revision(FIRST), revision(SECOND),
    )  # fmt: skip
    assert said["rollout"]["phase"] == "Progressing"
    assert "spec" not in said


def test_a_time_limit_ends_the_wait_with_exit_status_1(cluster: Cluster, ask: Ask) -> None:
    cluster.objects["kvservings"] = [rolling(FIRST, SECOND)]
    answer = ask("status", "qwen", "--timeout", "1s")
    assert answer.status == 1
    *_, end, way_out = answer.out.splitlines()
    assert end.startswith("qwen is not rolled out after 1 s: revision ")
    assert way_out.startswith("Way out: wait longer (`kvserving rollout status qwen -n prod`), ")
    assert ask("status", "qwen", "--timeout", "1s", "-o", "json").status == 1
    assert "'5x' is no time: write 600 or 600s, 10m, 1h30m" in ask("status", "qwen", "--timeout", "5x").err


def test_an_object_that_is_deleted_meanwhile_is_told(cluster: Cluster, ask: Ask) -> None:
    cluster.objects["kvservings"] = [rolling(FIRST, SECOND)]
    again = served(SECOND)
    again["metadata"]["uid"] = "u2"
    cluster.coming = [rolling(FIRST, SECOND), again]
    answer = ask("status", "qwen")
    assert (answer.status, answer.err) == (1, "error: KVServing qwen was deleted meanwhile\n")


def test_history_lists_revisions_with_what_undo_would_change_and_no_values(cluster: Cluster, ask: Ask) -> None:
    private = {"env": [{"name": "T", "value": PRIVATE}], "args": [f"--generation-config={PRIVATE}"]}
    secret = spec(engine={"version": "0.32.0", **private}, decode={"replicas": 9}, cache={"l1": {"size": "1Gi"}})
    cluster.objects["configmaps"][1] = config_map(secret, 2)
    cluster.objects["configmaps"].append(unreadable(0))
    answer = ask("history", "qwen")
    assert answer.status == 0
    head, *rows = [line.split("  ") for line in answer.out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in (head, *rows)]
    assert cells == [
        ["REVISION", "FIRST SEEN", "STATE", "MODEL", "VLLM", "UNDO WOULD CHANGE"],
        [revision(THIRD), "2026-01-01T00:03:00Z", "serving", "hf://Qwen/Qwen3-8B", "0.30.0", "-"],
        [revision(secret), "2026-01-01T00:02:00Z", "kept", "hf://Qwen/Qwen3-8B", "0.32.0",
         "spec.cache, spec.engine.args, spec.engine.env and 1 more"],
        [revision(FIRST), "2026-01-01T00:01:00Z", "kept", "hf://Qwen/Qwen3-8B", "0.33.0", "spec.engine.version"],
        ["feedfeedfeedfeed", "2026-01-01T00:00:00Z", "kept", "-", "the operator's choice", "cannot be read"],
    ]  # fmt: skip
    text = ask("history", "qwen", "-o", "json").out
    said = json.loads(text)
    assert said[1]["undoWouldChange"] == ["spec.cache", "spec.engine.args", "spec.engine.env", "spec.engine.version"]
    assert said[1]["lastChanged"] == "2026-01-01T01:02:00Z"
    assert said[3]["undoWouldChange"] is None
    assert PRIVATE not in answer.out + text
    cluster.objects["configmaps"] = []
    assert ask("history", "qwen").out.startswith("no spec of qwen is kept")


def test_undo_writes_the_former_spec_with_the_present_numbers(cluster: Cluster, ask: Ask) -> None:
    cluster.stored["spec"] = spec("0.30.0", decode={"replicas": 7}, rollout={"paused": True})
    before = copy.deepcopy(cluster.stored)
    answer = ask("undo", "qwen")
    assert answer.out.splitlines() == [
        f"qwen returns to revision {revision(SECOND)}, first seen 2026-01-01T00:02:00Z; this changes:",
        "  spec.engine.version",
        "written as generation 3",
        "`kvserving rollout status qwen -n prod` follows it",
    ]
    assert "spec.rollout.paused is set and stays" in answer.err
    assert "will set its own spec again" in answer.err
    assert answer.status == 0
    assert cluster.stored["spec"] == spec("0.32.0", decode={"replicas": 7}, rollout={"paused": True})
    assert cluster.stored["metadata"] == {**before["metadata"], "generation": 3}
    assert cluster.queries == [{"fieldManager": "kvserving"}]


def test_undo_names_who_applies_the_object(cluster: Cluster, ask: Ask) -> None:
    cluster.stored["metadata"]["managedFields"] = [{"manager": "argocd-controller", "fieldsV1": {"f:spec": {}}}]
    answer = ask("undo", "qwen", "--dry-run")
    assert "Argo CD (argocd-controller) applies this object" in answer.err


def test_a_dry_run_writes_nothing(cluster: Cluster, ask: Ask) -> None:
    answer = ask("undo", "qwen", "--to-revision", revision(FIRST)[:6], "--dry-run")
    assert (answer.status, answer.out.splitlines()[0]) == (
        0, f"qwen returns to revision {revision(FIRST)}, first seen 2026-01-01T00:01:00Z; this changes:",
    )  # fmt: skip
    assert answer.out.endswith("nothing is written (--dry-run)\n")
    assert cluster.writes == []


def test_undo_to_the_present_revision_changes_nothing(cluster: Cluster, ask: Ask) -> None:
    answer = ask("undo", "qwen", "--to-revision", revision(THIRD))
    assert (answer.status, cluster.writes) == (0, [])
    assert answer.out.startswith("nothing to change: ")


def test_a_revision_that_is_not_kept_or_too_short_is_refused(cluster: Cluster, ask: Ask) -> None:
    answer = ask("undo", "qwen", "--to-revision", "0000")
    assert answer.status == 1
    assert f"no kept revision begins with 0000; there are: {revision(THIRD)[:8]} (serving)" in answer.err
    for text in ("abc", "wxyz"):
        answer = ask("undo", "qwen", "--to-revision", text)
        assert answer.status == 2
        assert "at least 4 first digits" in answer.err


def test_a_change_between_reading_and_writing_is_kept(cluster: Cluster, ask: Ask) -> None:
    changed = served(spec("0.31.0"))
    changed["metadata"]["resourceVersion"] = "8"
    cluster.coming = [changed]
    answer = ask("undo", "qwen")
    assert (answer.status, answer.err.splitlines()[-1]) == (
        1, "error: the object changed while this ran, and nothing was written: run it again",
    )  # fmt: skip
    assert cluster.stored["spec"] == spec("0.31.0")


def test_a_status_that_is_written_meanwhile_is_no_change(cluster: Cluster, ask: Ask) -> None:
    told = served(THIRD)
    told["metadata"]["resourceVersion"] = "8"
    told["metadata"]["labels"] = {"team": "search"}
    cluster.coming = [told]
    answer = ask("undo", "qwen")
    assert answer.status == 0, answer.err
    assert cluster.stored["spec"]["engine"] == SECOND["engine"]
    assert cluster.stored["metadata"]["labels"] == {"team": "search"}


def test_a_status_that_is_written_without_end_ends_the_command(cluster: Cluster, ask: Ask) -> None:
    for number in range(20):
        told = served(THIRD)
        told["metadata"]["resourceVersion"] = str(100 + number)
        cluster.coming.append(told)
    answer = ask("undo", "qwen")
    assert (answer.status, len(cluster.queries)) == (1, 5)
    assert "the object changed while this ran" in answer.err


def test_a_write_that_may_not_be_or_is_refused_is_told(cluster: Cluster, ask: Ask) -> None:
    cluster.refusal = {"code": 403, "reason": "Forbidden", "message": 'User "x" cannot update resource "kvservings"'}
    answer = ask("undo", "qwen")
    assert answer.status == 3
    assert "you may not update kvservings.kvserving.dev prod/qwen" in answer.err
    causes = [{"field": "spec.engine.version", "reason": "FieldValueInvalid", "message": PRIVATE}]
    cluster.refusal = {"code": 422, "reason": "Invalid", "message": PRIVATE, "details": {"causes": causes}}
    answer = ask("undo", "qwen")
    assert answer.status == 1
    assert "refused as invalid: spec.engine.version (FieldValueInvalid); nothing was written" in answer.err
    assert PRIVATE not in answer.err


def test_a_kept_spec_that_this_version_refuses_is_told_with_its_faults(cluster: Cluster, ask: Ask) -> None:
    old = config_map(SECOND, 2)
    old["data"]["spec.json"] = json.dumps(spec("0.19.0", engine={"version": "0.19.0", "args": [f"--port={PRIVATE}"]}))
    cluster.objects["configmaps"][1] = old
    answer = ask("undo", "qwen")
    assert answer.status == 1
    assert f"this version refuses the kept spec of revision {revision(SECOND)[:8]}" in answer.err
    assert "  spec.engine.version: " in answer.err
    assert PRIVATE not in answer.out + answer.err
    assert cluster.writes == []


def test_a_spec_whose_revision_cannot_be_made_again_is_told(cluster: Cluster, ask: Ask) -> None:
    unnamed = config_map(spec(None), 2)
    unnamed["metadata"]["labels"]["kvserving.dev/revision"] = revision(spec("0.31.7"))
    del unnamed["metadata"]["annotations"]
    cluster.objects["configmaps"][1] = unnamed
    answer = ask("undo", "qwen", "--dry-run")
    assert f"that spec makes revision {revision(THIRD)}, not {revision(spec('0.31.7'))}" in answer.err


def test_a_name_that_is_not_there_is_told_with_those_that_are_and_a_service_of_this_machine(
    cluster: Cluster, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("status", "history", "undo"):
        answer = ask(command, "nobody")
        assert (answer.status, answer.err) == (1, "error: no KVServing nobody in namespace prod; there are: qwen\n")
    folder = tmp_path / "services" / "nobody"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    assert "the service nobody on this machine has no rollouts" in ask("status", "nobody").err
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in ("status", "history", "undo"):
        answer = ask(command, "nobody")
        assert (answer.status, answer.err) == (
            1,
            "error: the service nobody on this machine has no rollouts: `kvserving up` runs one revision; "
            "`kvserving status nobody` shows it\n",
        )
        assert "there is no cluster to ask" in ask(command, "elsewhere").err


@pytest.mark.parametrize("command", ["status", "history", "undo"])
def test_a_context_names_the_cluster_and_the_namespace(command: str, cluster: Cluster, ask: Ask) -> None:
    leave(Path(os.environ["KUBECONFIG"]))
    answer = ask(command, "qwen")
    assert (answer.status, cluster.writes) == (3, [])
    assert "http://127.0.0.1:9 does not answer" in answer.err
    assert ask(command, "qwen", "--context", "test").status == 0
    answer = ask(command, "qwen", "--context", "nowhere")
    assert answer.status == 3
    assert "nowhere" in answer.err


def test_rights_to_read_are_named(cluster: Cluster, ask: Ask) -> None:
    cluster.forbidden.add("configmaps")
    answer = ask("history", "qwen")
    assert answer.status == 3
    assert "you may not list configmaps prod" in answer.err


def test_the_plugin_has_the_same_commands_and_names_itself(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(("rollout", "undo", "qwen"), plugin, PROGRAM) == 0
    assert "`kubectl kvserving rollout status qwen -n prod` follows it" in capsys.readouterr().out
    assert cli.run(("rollout", "--help"), plugin, PROGRAM) == 0
    said = capsys.readouterr().out
    for word in ("Usage: kubectl kvserving rollout", "status", "history", "undo"):
        assert word in said


def test_help_imports_no_client() -> None:
    import subprocess

    code = "import sys\nfrom kvserving_operator import cli\ncli.run(['rollout', 'undo', '--help'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert not {"kubernetes", "aiohttp", "kopf", "pydantic"} & loaded


def test_the_help_of_all_commands_lists_it(capsys: pytest.CaptureFixture[Any]) -> None:
    assert cli.run(["--help"]) == 0
    assert "rollout" in capsys.readouterr().out
