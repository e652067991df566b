"""The control plane itself: start, faults of its programs, users, namespaces, clean-up."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import kubernetes.aio.client
import kubernetes.aio.config
import kubernetes.client
import pytest
import urllib3
from e2e.controlplane import build
from e2e.controlplane.api import ApiError
from e2e.controlplane.cluster import existing
from e2e.controlplane.controlplane import ControlPlane, free_ports
from e2e.controlplane.process import ComponentFailed
from e2e.controlplane.tests.objects import config_map

ROOT = Path(__file__).parents[3]
PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]


def test_starts_within_seconds_and_reports_its_version(control_plane: ControlPlane) -> None:
    assert control_plane.started_in < 30
    assert control_plane.api.get("/version")["gitVersion"].startswith("v1.")
    assert control_plane.has_controllers


def test_two_run_at_once_and_know_nothing_of_each_other(control_plane: ControlPlane, programs: build.Programs) -> None:
    with ControlPlane(programs=programs, controller_manager=False) as other:
        name = other.namespace("only-there")
        assert control_plane.api.find(f"/api/v1/namespaces/{name}") is None
        with pytest.raises(urllib3.exceptions.HTTPError):
            other.api_as(control_plane.admin, ca_file=control_plane.ca_file).get("/version")
        assert not other.has_controllers


def test_the_classic_client_works(control_plane: ControlPlane) -> None:
    core: Any = kubernetes.client.CoreV1Api(control_plane.client())
    assert core.read_namespace("default").status.phase == "Active"


def test_the_asynchronous_client_works(control_plane: ControlPlane) -> None:
    async def phase() -> Any:
        configuration = kubernetes.aio.client.Configuration()
        load: Any = kubernetes.aio.config.load_kube_config
        await load(str(control_plane.kubeconfig()), client_configuration=configuration)
        async with kubernetes.aio.client.ApiClient(configuration) as client:
            found: Any = await kubernetes.aio.client.CoreV1Api(client).read_namespace("default")
            return found.status.phase

    assert asyncio.run(phase()) == "Active"


def test_a_kubeconfig_makes_an_existing_cluster(control_plane: ControlPlane, tmp_path: Path) -> None:
    found = existing(str(control_plane.kubeconfig()), tmp_path)
    namespace = found.namespace()
    assert control_plane.api.get(f"/api/v1/namespaces/{namespace}")["status"]["phase"] == "Active"
    assert not found.owned


def test_a_crd_with_objects_is_left_alone_on_an_existing_cluster(control_plane: ControlPlane, tmp_path: Path) -> None:
    crd = tmp_path / "crd.yaml"
    crd.write_text(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
        "metadata: {name: things.example.dev}\n"
        "spec:\n  group: example.dev\n  scope: Namespaced\n"
        "  names: {kind: Thing, plural: things, singular: thing}\n"
        "  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n"
    )
    found = existing(str(control_plane.kubeconfig()), tmp_path)
    found.apply_crds([crd])
    namespace = control_plane.namespace()
    control_plane.api.create(
        {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "mine", "namespace": namespace}}
    )
    with pytest.raises(ValueError, match=f"has Thing objects \\({namespace}/mine\\)"):
        found.apply_crds([crd])
    control_plane.apply_crds([crd])


def test_a_service_account_may_do_what_it_was_granted_and_no_more(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    who = control_plane.service_account(namespace, "operator", PODS)
    as_operator = control_plane.api_as(who)
    assert as_operator.items(f"/api/v1/namespaces/{namespace}/pods") == []
    with pytest.raises(ApiError, match="cannot create resource") as refused:
        as_operator.create(config_map(namespace))
    assert refused.value.status == 403
    with pytest.raises(ApiError) as elsewhere:
        as_operator.items("/api/v1/namespaces/default/pods")
    assert elsewhere.value.status == 403


def test_a_verb_can_be_taken_away_while_in_use(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    who = control_plane.service_account(namespace, "operator", PODS)
    assert control_plane.allowed(who.name, "list", "pods", namespace=namespace)
    control_plane.grant(who.name, [], namespace=namespace)
    with pytest.raises(ApiError) as refused:
        control_plane.api_as(who).items(f"/api/v1/namespaces/{namespace}/pods")
    assert refused.value.status == 403
    assert not control_plane.allowed(who.name, "list", "pods", namespace=namespace)


def test_a_certificate_user_is_known_by_name_and_groups(control_plane: ControlPlane) -> None:
    user = control_plane.user("ann/lee", ["team-a", "team-b"])
    review = control_plane.api_as(user).request(
        "POST",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    )
    assert review["status"]["userInfo"]["username"] == "ann/lee"
    assert set(review["status"]["userInfo"]["groups"]) >= {"team-a", "team-b"}


def test_a_certificate_user_is_refused_for_a_proxy(control_plane: ControlPlane) -> None:
    with pytest.raises(ValueError, match="user ann has no token"):
        control_plane.kubeconfig(control_plane.user("ann"), server="https://127.0.0.1:1")


def test_credentials_do_not_show_their_secrets(control_plane: ControlPlane) -> None:
    assert control_plane.admin.token
    assert control_plane.admin.token not in repr(control_plane.admin)
    assert control_plane.kubeconfig().stat().st_mode & 0o077 == 0


def test_a_quota_is_enforced_when_the_call_returns(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    # The controller-manager puts its certificate bundle into every namespace.
    control_plane.api.wait(f"{maps}/kube-root-ca.crt", lambda o: o is not None, what="the certificate bundle")
    held = len(control_plane.api.items(maps))
    control_plane.quota(namespace, {"configmaps": str(held + 1)})
    control_plane.api.create(config_map(namespace, "fits"))
    with pytest.raises(ApiError, match="exceeded quota"):
        control_plane.api.create(config_map(namespace, "too-many"))


def test_children_of_a_new_kind_are_collected_at_once(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    owner = control_plane.api.create(
        {
            "apiVersion": "kvserving.dev/v1alpha1",
            "kind": "KVServing",
            "metadata": {"name": "owner", "namespace": namespace},
            "spec": {"model": {"uri": "hf://a/b"}, "decode": {"replicas": 1}},
        }
    )
    child = config_map(namespace, "child")
    reference = {k: owner[k] for k in ("apiVersion", "kind")} | {k: owner["metadata"][k] for k in ("name", "uid")}
    child["metadata"] = {"name": "child", "namespace": namespace, "ownerReferences": [reference]}
    control_plane.api.create(child)
    control_plane.api.delete(f"/apis/kvserving.dev/v1alpha1/namespaces/{namespace}/kvservings/owner")
    control_plane.api.wait(
        f"/api/v1/namespaces/{namespace}/configmaps/child", lambda o: o is None, what="collected", timeout=20
    )


@pytest.mark.parametrize("name", ["etcd", "apiserver", "controller_manager"])
def test_a_restarted_program_keeps_address_and_data(own_control_plane: ControlPlane, name: str) -> None:
    namespace = own_control_plane.namespace()
    own_control_plane.api.create(config_map(namespace, "kept", x="1"))
    component = getattr(own_control_plane, name)
    pid = component.pid
    component.restart()
    assert component.pid not in (pid, None)
    # The apiserver needs a moment to find etcd again, hence a wait and not one read.
    deadline = time.monotonic() + 20
    while True:
        try:
            found = own_control_plane.api.get(f"/api/v1/namespaces/{namespace}/configmaps/kept")
            break
        except (ApiError, urllib3.exceptions.HTTPError):
            assert time.monotonic() < deadline
    assert found["data"] == {"x": "1"}
    assert own_control_plane.namespace()


def test_a_program_restarted_by_a_thread_outlives_that_thread(own_control_plane: ControlPlane) -> None:
    thread = threading.Thread(target=own_control_plane.etcd.restart)
    thread.start()
    thread.join()
    own_control_plane.etcd.wait_ready()
    pid = own_control_plane.etcd.pid
    assert pid is not None
    own_control_plane.namespace()
    assert own_control_plane.etcd.pid == pid


def test_a_paused_apiserver_answers_nothing_until_it_is_resumed(own_control_plane: ControlPlane) -> None:
    own_control_plane.apiserver.pause()
    with pytest.raises(urllib3.exceptions.TimeoutError):
        own_control_plane.api.request("GET", "/version", timeout=0.5)
    own_control_plane.apiserver.resume()
    assert own_control_plane.api.get("/version")["major"] == "1"


def test_a_watch_from_before_a_compaction_is_gone(own_control_plane: ControlPlane) -> None:
    namespace = own_control_plane.namespace()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    old = own_control_plane.api.get(path)["metadata"]["resourceVersion"]
    for number in range(3):
        own_control_plane.api.create(config_map(namespace, f"map-{number}"))
    own_control_plane.compact()
    own_control_plane.apiserver.restart()
    with pytest.raises(ApiError) as listed:
        own_control_plane.api.get(path, resourceVersion=old, resourceVersionMatch="Exact")
    assert listed.value.status == 410
    events = list(own_control_plane.api.watch(path, timeout=2, resourceVersion=old))
    assert [e["object"]["code"] for e in events if e["type"] == "ERROR"] == [410]


def test_a_program_that_cannot_start_shows_its_log(
    programs: build.Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ComponentFailed, match=r"(?s)kube-apiserver ended with 1 .*unknown flag: --no-such-flag"):
        ControlPlane(programs=programs, apiserver_args=["--no-such-flag"]).start()
    kept = capsys.readouterr().out.split("logs are in ")[1].strip()
    assert "no-such-flag" in (Path(kept) / "kube-apiserver.log").read_text()
    shutil.rmtree(kept)


def test_leaving_removes_programs_and_folder(programs: build.Programs) -> None:
    with ControlPlane(programs=programs, controller_manager=False) as plane:
        folder, pids = plane.folder, [plane.etcd.pid, plane.apiserver.pid]
    assert not folder.exists()
    assert not any(pid is not None and Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_error_inside_keeps_the_logs(programs: build.Programs, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), ControlPlane(programs=programs, controller_manager=False):
        raise ZeroDivisionError
    kept = Path(capsys.readouterr().out.split("logs are in ")[1].strip())
    assert (kept / "etcd.log").stat().st_size > 0
    shutil.rmtree(kept)


def test_a_killed_test_run_leaves_no_program_and_the_next_removes_its_folder(
    programs: build.Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import time; from e2e.controlplane.controlplane import ControlPlane\n"
        "p = ControlPlane(controller_manager=False); p.start()\n"
        "print(p.etcd.pid, p.apiserver.pid, flush=True); time.sleep(600)"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pids = [int(pid) for pid in child.stdout.readline().split()]
    assert len(pids) == 2
    handles = [os.pidfd_open(pid) for pid in pids]
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    for handle in handles:
        with open(handle, closefd=True) as process:
            assert _ends(process.fileno()), "a program outlived the test run"
    (left,) = tmp_path.iterdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ControlPlane(programs=programs, controller_manager=False) as first:
        assert not left.exists()
        with ControlPlane(programs=programs, controller_manager=False):
            assert first.folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_free_ports_are_below_the_range_of_outgoing_connections() -> None:
    ports = free_ports(8)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 8
    assert all(port < max(lowest, 20480) for port in ports)


def test_free_ports_differ_between_the_workers_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    for worker in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        assert {(port - 10240) % 3 for port in free_ports(8)} == {worker}


def _ends(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(10_000))
