"""What the chart renders: the operator as it is run, with no more rights than the code needs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart.charts import CHART, MONITORING, NAME, NAMESPACE, Helm, Json, Refused, kinds, one, value_files

import kvserving_operator
from kvserving_operator.api.schema import definitions
from kvserving_operator.cli.operator import run
from kvserving_operator.control import permissions
from kvserving_operator.control.config import Config
from kvserving_operator.plan import network
from kvserving_operator.plan.types import CONNECTOR_IMAGE

# Set by the pod's environment, or of no use in a pod.
_NOT_ARGUMENTS = {"--own-namespace", "--identity", "--kubeconfig", "--no-elect", "--help"}
_RBAC = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture(scope="session")
def defaults(helm: Helm) -> list[Json]:
    return helm.template()


def container(objects: list[Json]) -> Json:
    (deployment,) = (obj for obj in objects if obj["kind"] == "Deployment")
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def argument(objects: list[Json], flag: str) -> list[str]:
    return [a.partition("=")[2] for a in container(objects)["args"] if a.partition("=")[0] == flag]


def own(objects: list[Json]) -> list[Json]:
    """The release's objects without those of its test."""
    return [obj for obj in objects if "helm.sh/hook" not in obj["metadata"].get("annotations", {})]


@pytest.mark.parametrize("values", [{}, *value_files().values()], ids=["defaults", *value_files()])
def test_helm_lint_finds_nothing(helm: Helm, values: dict[str, Any]) -> None:
    told = helm.run("lint", str(CHART), "--strict", values=values)
    assert "1 chart(s) linted, 0 chart(s) failed" in told
    assert "[WARNING]" not in told


def test_its_version_is_the_operators(helm: Helm, defaults: list[Json]) -> None:
    shown = helm.run("show", "chart", str(CHART)).splitlines()
    assert {f"version: {kvserving_operator.__version__}", f"appVersion: {kvserving_operator.__version__}"} <= set(shown)
    assert container(defaults)["image"] == f"kvserving/operator:{kvserving_operator.__version__}"


def test_every_setting_of_the_process_is_a_value(helm: Helm) -> None:
    given = {a.partition("=")[0] for a in container(helm.template({"namespaces": ["a"]}))["args"] if a[:2] == "--"}
    known = {option for parameter in run.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert given == known - _NOT_ARGUMENTS - {"--elect"}


def test_the_defaults_of_the_chart_are_those_of_the_process(defaults: list[Json]) -> None:
    config = Config()
    wanted: dict[str, object] = {
        "--workers": config.workers,
        "--resync": config.resync_seconds,
        "--counters": config.counters_seconds,
        "--write-rate": config.write_rate,
        "--write-burst": config.write_burst,
        "--request-timeout": config.request_timeout,
        "--lease-duration": config.election.duration,
        "--renew-deadline": config.election.renew_deadline,
        "--retry-period": config.election.retry_period,
    }
    assert {flag: float(argument(defaults, flag)[0]) for flag in wanted} == wanted
    assert argument(defaults, "--lease-name") == [config.election.name]
    assert argument(defaults, "--connector-image") == [CONNECTOR_IMAGE]
    assert argument(defaults, "--monitoring-namespace") == [config.monitoring_namespace]
    assert argument(defaults, "--listen") == [f"{config.listen_host}:{config.listen_port}"]


def test_the_command_line_takes_what_the_chart_gives(helm: Helm) -> None:
    values = {"namespaces": ["a", "b"], "operator": {"listenHost": "::", "logFormat": "text", "logLevel": "debug"}}
    arguments = container(helm.template(values))["args"]
    assert arguments[:2] == ["operator", "run"]
    parsed = run.make_context("run", list(arguments[2:])).params
    assert parsed["namespaces"] == ("a", "b")
    assert parsed["listen"] == "[::]:8080"


def test_the_pods_are_those_that_the_policies_of_every_object_let_in(defaults: list[Json]) -> None:
    labels = one(defaults, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert network._OPERATOR.items() <= labels.items()
    (test_pod,) = (obj for obj in defaults if obj["kind"] == "Pod")
    assert not network._OPERATOR.items() <= test_pod["metadata"]["labels"].items()


@pytest.mark.parametrize("served", [[], ["team-a", "team-b"]])
def test_its_rights_are_those_that_the_code_declares(helm: Helm, served: list[str]) -> None:
    def granted(objects: list[Json]) -> dict[tuple[str, str, str], Any]:
        return {
            (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): (
                obj.get("rules"),
                obj.get("roleRef"),
                obj.get("subjects"),
            )
            for obj in objects
            if obj["kind"] in _RBAC
        }

    rendered = granted(own(helm.template({"namespaces": served, "rbac": {"aggregate": False}})))
    assert rendered == granted(permissions.manifests(NAMESPACE, served))


def test_people_who_may_edit_a_namespace_may_edit_its_objects(defaults: list[Json]) -> None:
    view, edit = one(defaults, "ClusterRole", f"{NAME}-view"), one(defaults, "ClusterRole", f"{NAME}-edit")
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    written = {resource: set(rule["verbs"]) for rule in edit["rules"] for resource in rule["resources"]}
    assert set(written) == {"kvservings", "kvservingroles/scale"}, "of roles, only the number is anybody's"
    assert written["kvservingroles/scale"] == {"patch", "update"}


def test_rights_and_account_can_be_somebody_elses(helm: Helm) -> None:
    values = {
        "rbac": {"create": False, "aggregate": False},
        "serviceAccount": {"create": False, "name": "given"},
        "test": {"enabled": False},
    }
    objects = helm.template(values)
    assert not kinds(objects) & {*_RBAC, "ServiceAccount"}
    assert one(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "given"


@pytest.mark.parametrize("keep", [True, False])
def test_the_crds_are_those_of_the_code_and_kept_where_asked(helm: Helm, keep: bool) -> None:
    objects = helm.template({"crds": {"keep": keep}})
    for wanted in definitions().values():
        made = one(objects, "CustomResourceDefinition", wanted["metadata"]["name"])
        assert made["spec"] == wanted["spec"]
        assert (made["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep") is keep


def test_the_crds_can_be_left_out(helm: Helm) -> None:
    assert "CustomResourceDefinition" not in kinds(helm.template({"crds": {"install": False}}))


def test_pods_keep_to_the_restricted_standard(defaults: list[Json]) -> None:
    pods = [one(defaults, "Deployment")["spec"]["template"]["spec"]]
    pods += [obj["spec"] for obj in defaults if obj["kind"] == "Pod"]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (part,) = pod["containers"]
        security = part["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert part["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in part["resources"]["limits"]
        assert pod["enableServiceLinks"] is False


def test_the_platform_can_choose_the_user(helm: Helm) -> None:
    objects = helm.template({"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}})
    security = one(objects, "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(("replicas", "budget"), [(0, False), (1, False), (2, True), (5, True)])
def test_a_budget_protects_pods_that_can_replace_each_other(helm: Helm, replicas: int, budget: bool) -> None:
    objects = helm.template({"replicas": replicas})
    assert one(objects, "Deployment")["spec"]["replicas"] == replicas
    assert ("PodDisruptionBudget" in kinds(objects)) is budget


def test_an_image_is_named_by_its_digest_where_there_is_one(helm: Helm) -> None:
    digest = f"sha256:{'ab' * 32}"
    image = {"repository": "registry.example/a", "tag": "ignored", "digest": digest}
    objects = helm.template({"image": image, "connector": {"image": {**image, "digest": "", "tag": "1.2"}}})
    (test_pod,) = (obj for obj in objects if obj["kind"] == "Pod")
    assert container(objects)["image"] == f"registry.example/a@{digest}"
    assert test_pod["spec"]["containers"][0]["image"] == f"registry.example/a@{digest}"
    assert argument(objects, "--connector-image") == ["registry.example/a:1.2"]


def test_selectors_meet_the_pods_and_only_them(defaults: list[Json]) -> None:
    pod = one(defaults, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one(defaults, "Deployment")["spec"]["selector"]["matchLabels"],
        one(defaults, "Service")["spec"]["selector"],
        one(defaults, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(defaults, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    spread = one(defaults, "Deployment")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    selectors += [constraint["labelSelector"]["matchLabels"] for constraint in spread]
    assert len(selectors) == 6
    assert all(selector == selectors[0] for selector in selectors)
    assert selectors[0].items() <= pod.items()


def test_labels_and_annotations_are_on_every_object_and_selectors_stay(helm: Helm, defaults: list[Json]) -> None:
    values = {
        "commonLabels": {"team": "a", "app.kubernetes.io/name": "other"},
        "commonAnnotations": {"note": "b"},
        "podLabels": {"app.kubernetes.io/instance": "other", "mesh": "on"},
        "podAnnotations": {"note": "c"},
        "monitoring": {
            "monitor": "PodMonitor",
            "rules": {"create": "enabled"},
            "dashboards": {"create": True},
            "labels": {"release": "prometheus"},
        },
    }
    objects = helm.template(values)
    for obj in objects:
        assert obj["metadata"]["labels"]["team"] == "a", obj["kind"]
        assert obj["metadata"]["annotations"]["note"] == "b", obj["kind"]
    spec = one(objects, "Deployment")["spec"]
    assert spec["selector"] == one(defaults, "Deployment")["spec"]["selector"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["template"]["metadata"]["labels"]["mesh"] == "on"
    assert spec["template"]["metadata"]["annotations"]["note"] == "c"
    assert one(objects, "PodMonitor")["metadata"]["labels"]["release"] == "prometheus"
    assert one(objects, "PrometheusRule")["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize(
    ("monitor", "cluster_has", "made"),
    [
        ("none", MONITORING, None),
        ("auto", (), None),
        ("auto", MONITORING, "PodMonitor"),
        ("PodMonitor", (), "PodMonitor"),
        ("ServiceMonitor", (), "ServiceMonitor"),
    ],
)
def test_one_monitor_at_most(helm: Helm, monitor: str, cluster_has: tuple[str, ...], made: str | None) -> None:
    objects = helm.template({"monitoring": {"monitor": monitor}}, kinds=cluster_has)
    found = kinds(objects) & {"PodMonitor", "ServiceMonitor"}
    assert found == ({made} if made else set())
    if made is not None:
        spec = one(objects, made)["spec"]
        (endpoint,) = spec["podMetricsEndpoints" if made == "PodMonitor" else "endpoints"]
        assert endpoint["port"] == "http"
        labels = one(objects, "Service" if made == "ServiceMonitor" else "Deployment")["metadata"]["labels"]
        if made == "PodMonitor":
            labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("create", "cluster_has", "made"),
    [("disabled", MONITORING, False), ("auto", (), False), ("auto", MONITORING, True), ("enabled", (), True)],
)
def test_rules_are_made_when_asked_for(helm: Helm, create: str, cluster_has: tuple[str, ...], made: bool) -> None:
    objects = helm.template({"monitoring": {"rules": {"create": create}}}, kinds=cluster_has)
    assert ("PrometheusRule" in kinds(objects)) is made


def test_nothing_is_made_twice_or_without_a_place(helm: Helm) -> None:
    values = {"monitoring": {"monitor": "ServiceMonitor", "rules": {"create": "auto"}, "dashboards": {"create": True}}}
    for served in ([], ["a", "b"]):
        objects = helm.template({**values, "namespaces": served}, kinds=MONITORING)
        names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
        assert len(names) == len(set(names))
        cluster_wide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
        assert {kind for kind, namespace, _ in names if namespace is None} <= cluster_wide


def test_sync_waves_put_the_crd_first(helm: Helm, defaults: list[Json]) -> None:
    key = "argocd.argoproj.io/sync-wave"
    assert not [obj for obj in defaults if key in obj["metadata"].get("annotations", {})]
    for obj in helm.template({"argocd": {"syncWaves": True}}):
        wave = "-2" if obj["kind"] == "CustomResourceDefinition" else "-1"
        assert obj["metadata"]["annotations"][key] == wave


def test_a_second_release_of_a_namespace_shares_nothing(helm: Helm, defaults: list[Json]) -> None:
    other = helm.template({"crds": {"install": False}, "namespaces": ["b"]}, name="second")

    def names(objects: list[Json]) -> set[tuple[str, str]]:
        return {(obj["kind"], obj["metadata"]["name"]) for obj in objects}

    assert not names(defaults) & names(other)
    assert argument(other, "--lease-name") == ["second-kvserving-operator"]
    # Why helm refuses a second release that does not say so.
    crds = {("CustomResourceDefinition", f"{plural}.kvserving.dev") for plural in ("kvservings", "kvservingroles")}
    assert names(defaults) & names(helm.template({"namespaces": ["b"]}, name="second")) == crds


def test_objects_have_the_name_that_is_given_in_place_of_the_release_s(helm: Helm, defaults: list[Json]) -> None:
    named = own(helm.template({"fullnameOverride": "kv"}))
    plain = {(obj["kind"], obj["metadata"]["name"].replace(NAME, "kv", 1)) for obj in own(defaults)}
    assert {(obj["kind"], obj["metadata"]["name"]) for obj in named} == plain
    assert argument(named, "--lease-name") == ["kv"]
    for binding in (obj for obj in named if obj["kind"].endswith("RoleBinding")):
        assert [subject["name"] for subject in binding["subjects"]] == ["kv"]
        assert binding["roleRef"]["name"].startswith("kv")


def test_the_pod_has_the_seconds_to_end_that_are_given(helm: Helm, defaults: list[Json]) -> None:
    for objects, seconds in ((defaults, 30), (helm.template({"terminationGracePeriodSeconds": 90}), 90)):
        assert one(objects, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == seconds


def test_the_notes_name_the_next_commands_up_to_a_request(helm: Helm) -> None:
    def notes(values: dict[str, Any]) -> str:
        command = ("install", NAME, str(CHART), "-n", NAMESPACE, "--dry-run=client", "--hide-notes=false")
        return helm.run(*command, values=values).partition("NOTES:")[2]

    plain = notes({})
    commands = [line.strip() for line in plain.splitlines() if line.startswith("  ")]
    assert [command.split()[:2] for command in commands] == [
        ["helm", "test"],
        ["kubectl", "apply"],
        ["kubectl", "wait"],
        ["kubectl", "port-forward"],
        ["curl", "http://127.0.0.1:8000/v1/completions"],
    ]
    assert "NOTE" not in plain
    assert "deletes the CRDs" in notes({"crds": {"keep": False}})
    assert "nobody takes over" in notes({"replicas": 1})
    assert notes({"namespaces": ["team-a"]}).count("-n team-a") == 3


def test_a_cluster_that_is_too_old_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match=r"chart requires kubeVersion: >=1\.33\.0-0"):
        helm.template(more=("--kube-version", "1.32.9"))
