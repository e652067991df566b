"""The chart on a real apiserver: installed by helm, upgraded, removed; the operator with the rights that it gives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from e2e.controlplane import build, foreign_crds
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane, free_ports
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.pod_script import ContainerState, PodState, Script, Step, completes
from tests.chart import bundle
from tests.chart.charts import CHART, NAME, NAMESPACE, ROOT, Helm, Refused, kinds, one, value_files

from kvserving_operator import __version__

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kvservings.kvserving.dev"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
MONITORS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
_HTTP = urllib3.PoolManager(retries=False)


@pytest.fixture
def bare(programs: build.Programs) -> Iterator[ControlPlane]:
    """A control plane without our CRD, and with the namespaces that the tests install into."""
    with ControlPlane(programs=programs) as plane:
        for name, labels in ((NAMESPACE, RESTRICTED), ("team-a", {}), ("team-b", {})):
            metadata = {"name": name, "labels": labels}
            plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            plane.api.wait(
                f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda o: o is not None, what="service account"
            )
        yield plane


def add(plane: ControlPlane, *found: str) -> None:
    """Install CRDs of others, or skip where they cannot be had."""
    try:
        plane.apply_crds([foreign_crds.crd(kind) for kind in found])
    except build.ProgramsMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def states(plane: ControlPlane, objects: list[Json]) -> dict[str, Any]:
    """What a writer of these objects has changed so far: the apiserver notes the time of each real change.

    Controllers write, too: status, and annotations of their own.
    """
    found = {}
    for path in map(plane.api.path_of, objects):
        metadata = plane.api.get(path)["metadata"]
        writers = [w for w in metadata["managedFields"] if not w["manager"].startswith("kube-")]
        assert writers, path
        found[path] = (metadata.get("generation"), [(w["manager"], w["time"], w["fieldsV1"]) for w in writers])
    return found


def strict(plane: ControlPlane, objects: list[Json], *, dry_run: bool = False) -> None:
    for obj in objects:
        if dry_run:
            plane.api.apply(obj, fieldValidation="Strict", dryRun="All")
        else:
            plane.api.apply(obj, fieldValidation="Strict")


def installed(helm: Helm, plane: ControlPlane, command: str, values: Mapping[str, Any], *more: str) -> str:
    where = ("--namespace", NAMESPACE, "--kubeconfig", str(plane.kubeconfig()))
    chart = () if command == "uninstall" else (str(CHART),)
    return helm.run(command, NAME, *chart, *where, *more, values=None if command == "uninstall" else values)


def test_what_it_renders_is_taken_as_it_is_and_twice_without_a_change(helm: Helm, bare: ControlPlane) -> None:
    add(bare, *MONITORS)
    made = [helm.template(), *map(helm.template, value_files().values())]
    assert set(MONITORS) <= {kind for objects in made for kind in kinds(objects)}
    for objects in made:
        first = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
        strict(bare, first)
        # A pod needs its account, which a dry run leaves out.
        strict(bare, [obj for obj in objects if obj["kind"] != "Pod"], dry_run=True)
        strict(bare, objects)
        before = states(bare, objects)
        time.sleep(1.1)
        strict(bare, objects)
        assert states(bare, objects) == before
        for obj in objects:
            if obj["kind"] == "Pod":
                bare.api.delete(bare.api.path_of(obj), gracePeriodSeconds=0)


def test_a_field_that_does_not_exist_would_be_seen(helm: Helm, bare: ControlPlane) -> None:
    service = one(helm.template(), "Service")
    service["spec"]["typo"] = True
    with pytest.raises(ApiError, match="typo"):
        strict(bare, [service], dry_run=True)


def test_its_pods_are_admitted_where_the_restricted_standard_is_enforced(helm: Helm, bare: ControlPlane) -> None:
    installed(helm, bare, "install", {})

    def enough(deployment: Json | None) -> bool:
        status = (deployment or {}).get("status") or {}
        return status.get("replicas") == 2

    bare.api.wait(DEPLOYMENT, enough, what="two pods")
    (test_pod,) = (obj for obj in helm.template() if obj["kind"] == "Pod")
    test_pod["spec"]["serviceAccountName"] = "default"
    bare.api.create(test_pod, dryRun="All")
    test_pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="restricted"):
        bare.api.create(test_pod, dryRun="All")


def test_an_upgrade_without_a_change_changes_nothing_and_the_crd_stays(helm: Helm, bare: ControlPlane) -> None:
    told = installed(helm, bare, "install", {})
    assert "kubectl wait --for=condition=Ready kvs/tiny" in told
    objects = [obj for obj in helm.template() if "helm.sh/hook" not in obj["metadata"].get("annotations", {})]
    serving = yaml.safe_load((ROOT / "examples" / "cluster-without-gpu.yaml").read_text())
    bare.api.create(serving, fieldValidation="Strict")
    before = states(bare, [*objects, serving])
    time.sleep(1.1)
    installed(helm, bare, "upgrade", {})
    assert states(bare, [*objects, serving]) == before
    installed(helm, bare, "upgrade", {"replicas": 3})
    changed = {path for path, state in states(bare, [*objects, serving]).items() if state != before[path]}
    assert changed == {DEPLOYMENT}
    installed(helm, bare, "uninstall", {})
    assert bare.api.find(DEPLOYMENT) is None
    assert bare.api.get(bare.api.path_of(serving))["spec"] == serving["spec"]
    # A new release takes over what the old one left.
    installed(helm, bare, "install", {})
    assert bare.api.get(CRD)["metadata"]["annotations"]["meta.helm.sh/release-name"] == NAME


def test_a_release_takes_over_a_crd_that_was_applied_by_hand_when_told_so(helm: Helm, bare: ControlPlane) -> None:
    kubectl = [str(build.kubectl()), "--kubeconfig", str(bare.kubeconfig())]
    subprocess.run([*kubectl, "apply", "-f", str(ROOT / "crds")], check=True, timeout=60, stdout=subprocess.DEVNULL)
    with pytest.raises(Refused, match="invalid ownership metadata"):
        installed(helm, bare, "install", {})
    installed(helm, bare, "install", {}, "--take-ownership", "--force-conflicts")
    installed(helm, bare, "uninstall", {})
    assert bare.api.find(CRD) is not None


def test_the_crd_goes_with_the_release_where_it_is_not_kept(helm: Helm, bare: ControlPlane) -> None:
    installed(helm, bare, "install", {"crds": {"keep": False}})
    installed(helm, bare, "uninstall", {})
    bare.api.wait(CRD, lambda found: found is None, what="the CRD's deletion")


def test_the_bundle_is_current_and_the_base_is_the_bundle(helm: Helm, bare: ControlPlane, tmp_path: Path) -> None:
    file = ROOT / "deploy" / bundle.FILE_NAME
    assert file.read_text() == bundle.render(helm), "run `make bundle`"
    written = list(yaml.safe_load_all(file.read_text()))
    strict(bare, written)
    kubectl = [str(build.kubectl()), "--kubeconfig", str(bare.kubeconfig())]

    def run(*arguments: str) -> str:
        command = [*kubectl, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    base = list(yaml.safe_load_all(run("kustomize", str(ROOT / "deploy"))))
    assert bundle.differing(base, written) == []
    # Its words do not tell: it calls every disruption budget configured, whatever it changed.
    run("apply", "-f", str(file))
    before = states(bare, written)
    time.sleep(1.1)
    run("apply", "-f", str(file))
    assert states(bare, written) == before
    overlaid = list(yaml.safe_load_all(run("kustomize", str(ROOT / "examples" / "gitops" / "kustomize"))))
    strict(bare, overlaid, dry_run=True)
    container = one(overlaid, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"registry.example/kvserving/operator:{__version__}"
    assert container["args"][-1] == f"--connector-image=registry.example/kvserving/connector:{__version__}"
    overlay = tmp_path / "kustomization.yaml"
    overlay.write_text(
        yaml.safe_dump({"namespace": "other", "resources": [os.path.relpath(ROOT / "deploy", tmp_path)]})
    )
    moved = list(yaml.safe_load_all(run("kustomize", str(tmp_path))))
    assert {obj["metadata"]["namespace"] for obj in moved if "namespace" in obj["metadata"]} == {"other"}
    assert {s["namespace"] for obj in moved for s in obj.get("subjects", ())} == {"other"}


@pytest.mark.parametrize("served", [[], ["team-a"]], ids=["all namespaces", "one namespace"])
def test_the_operator_works_with_the_rights_of_the_chart(
    helm: Helm, bare: ControlPlane, tmp_path: Path, served: list[str]
) -> None:
    installed(helm, bare, "install", {"namespaces": served, "replicas": 0})
    container = bare.api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"][0]
    (port,) = free_ports(1)
    arguments = [arg for arg in container["args"] if not arg.startswith("--listen=")]
    config = bare.kubeconfig(bare.service_account(NAMESPACE, NAME))
    log = tmp_path / "operator.log"
    environ = {"PATH": os.environ["PATH"], "KUBECONFIG": str(config), "POD_NAMESPACE": NAMESPACE, "POD_NAME": "one"}
    environ["PYTHONPATH"] = str(ROOT / "operator" / "src")
    command = [sys.executable, "-m", "kvserving_operator", *arguments, f"--listen=127.0.0.1:{port}"]
    with log.open("w") as file, subprocess.Popen(command, env=environ, stdout=file, stderr=file) as process:
        try:
            told = _helm_test(helm, bare, tmp_path, f"http://127.0.0.1:{port}", served, seconds=60)
            assert process.poll() is None, log.read_text()
            assert told.returncode == 0, told.stdout + told.stderr + log.read_text()
            assert "in the roles active" in told.stdout
            lease = bare.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}")
            assert lease["spec"]["holderIdentity"] == "one"
            serving = yaml.safe_load((ROOT / "examples" / "gpu-host.yaml").read_text())
            serving["metadata"]["namespace"] = "team-a"
            bare.api.create(serving, fieldValidation="Strict")
            bare.api.wait(
                "/apis/apps/v1/namespaces/team-a/deployments/qwen-router", lambda _: _made(bare), what="deployments"
            )
        finally:
            process.terminate()
            process.wait(30)
    ended = _helm_test(helm, bare, tmp_path, f"http://127.0.0.1:{port}", served, seconds=1)
    assert ended.returncode == 1
    assert "wrong" in ended.stdout


def _made(plane: ControlPlane) -> bool:
    return len(plane.api.items("/apis/apps/v1/namespaces/team-a/deployments")) == 3


def _helm_test(
    helm: Helm, plane: ControlPlane, folder: Path, operator: str, served: list[str], *, seconds: int
) -> subprocess.CompletedProcess[str]:
    """Run the program of `helm test` as its pod would be, with the rights of its account."""
    rendered = helm.template({"namespaces": served})
    objects = [obj for obj in rendered if "helm.sh/hook" in obj["metadata"].get("annotations", {})]
    strict(plane, [obj for obj in objects if obj["kind"] not in ("Pod", "ConfigMap")])
    (pod,) = (obj for obj in objects if obj["kind"] == "Pod")
    env = {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}
    account = folder / "account"
    account.mkdir(exist_ok=True)
    token = plane.service_account(NAMESPACE, pod["spec"]["serviceAccountName"]).token
    assert token is not None
    assert plane.ca_file is not None
    (account / "token").write_text(token)
    (account / "ca.crt").write_bytes(plane.ca_file.read_bytes())
    server = urllib3.util.parse_url(plane.server)
    env |= {"OPERATOR": operator, "TEST_ACCOUNT": str(account), "TEST_SECONDS": str(seconds)}
    env |= {"KUBERNETES_SERVICE_HOST": str(server.host), "KUBERNETES_SERVICE_PORT": str(server.port)}
    (config,) = (obj for obj in objects if obj["kind"] == "ConfigMap")
    program = folder / "test.py"
    program.write_text(config["data"]["test.py"])
    return subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=seconds + 60, check=False
    )


def test_helm_test_makes_its_pod_with_rights_and_leaves_nothing(helm: Helm, bare: ControlPlane) -> None:
    labels = {"app.kubernetes.io/component": "test"}
    failed = Script((Step(0.05, PodState("Failed", ContainerState(exit_code=1))),))
    with FakeKubelet(bare) as kubelet:
        kubelet.script(labels, completes())
        installed(helm, bare, "install", {}, "--wait", "--timeout", "60s")
        where = ("--namespace", NAMESPACE, "--kubeconfig", str(bare.kubeconfig()), "--timeout", "30s")
        told = helm.run("test", NAME, *where)
        assert "Succeeded" in told
        hooks = [obj for obj in helm.template() if "helm.sh/hook" in obj["metadata"].get("annotations", {})]
        assert len(hooks) == 5
        assert [path for path in map(bare.api.path_of, hooks) if bare.api.find(path) is not None] == []
        kubelet.script(labels, failed)
        with pytest.raises(Refused, match="failed"):
            helm.run("test", NAME, *where)


def test_the_examples_for_gitops_are_what_their_tools_take(helm: Helm, bare: ControlPlane) -> None:
    add(bare, "Application", "GitRepository", "HelmRelease", "Kustomization")
    files = [file for tool in ("argocd", "flux") for file in sorted((ROOT / "examples" / "gitops" / tool).iterdir())]
    objects = [obj for file in files for obj in yaml.safe_load_all(file.read_text())]
    found = kinds(objects)
    assert {"Application", "ConfigMap", "GitRepository", "HelmRelease", "Kustomization"} == found
    for name in ("argocd", "flux-system"):
        bare.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    strict(bare, objects, dry_run=True)
    wrong = next(obj for obj in objects if obj["kind"] == "HelmRelease")
    with pytest.raises(ApiError, match="typo"):
        strict(bare, [{**wrong, "spec": {**wrong["spec"], "typo": 1}}], dry_run=True)
    given = [obj["spec"]["values"] for obj in objects if obj["kind"] == "HelmRelease"]
    applications = [obj["spec"]["source"].get("helm") for obj in objects if obj["kind"] == "Application"]
    given += [told["valuesObject"] for told in applications if told]
    assert len(given) == 2
    for values in given:
        assert helm.template(values)
