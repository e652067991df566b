"""Pod basics, probes and time to load, shutdown."""

from __future__ import annotations

import re

import pytest
from tests import specs
from tests.plan.support import case, faults, pair, render

from kvserving_operator.plan.names import base_name

EVERYTHING = [path.stem[:2] for path in specs.accepted()]
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@pytest.mark.parametrize("number", EVERYTHING)
def test_no_pod_gets_variables_of_services(number: str) -> None:
    for name, pod in case(number).pods():
        assert pod["enableServiceLinks"] is False, name


@pytest.mark.parametrize("number", EVERYTHING)
def test_only_the_router_gets_a_token(number: str) -> None:
    for name, pod in case(number).pods():
        assert pod["automountServiceAccountToken"] is ("-router-" in name), name


@pytest.mark.parametrize("number", EVERYTHING)
def test_every_pod_runs_restricted(number: str) -> None:
    for name, pod in case(number).pods():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"], name


@pytest.mark.parametrize("number", EVERYTHING)
def test_every_name_is_a_distinct_dns_label(number: str) -> None:
    objects = case(number).plan.objects
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names)
    for _, name in names:
        assert LABEL.fullmatch(name), name
        assert len(name) <= 63, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [("qwen", "qwen"), ("qwen3-0.6b", r"qwen3-0-6b-[0-9a-f]{5}"), ("3llama", r"kv-3llama-[0-9a-f]{5}")],
)
def test_names_are_changed_only_where_they_must(name: str, expected: str) -> None:
    assert re.fullmatch(expected, base_name(name))


def test_names_that_differ_in_a_dot_stay_distinct() -> None:
    assert len({base_name(name) for name in ("a.b", "a-b", "a.b.c", "a-b.c", "a.b-c")}) == 5


def test_a_long_name_with_dots_stays_short() -> None:
    assert len(base_name("a." * 19 + "bc")) <= 40


@pytest.mark.parametrize("args", [["--port", "8300"], ["--port=8300"], ["--port", "1", "--port=8300"]])
def test_a_port_of_the_users_is_honoured_once_and_everywhere(args: list[str]) -> None:
    plan = render(pair(engine={"args": args}))
    for engine in plan.engines:
        assert [flag.value for flag in engine.flags("--port")] == ["8300"]
        assert engine.container["ports"][0] == {"name": "http", "containerPort": 8300}
        assert engine.container["readinessProbe"]["httpGet"]["port"] == "http"
        assert engine.container["lifecycle"]["preStop"]["exec"]["command"][-1] == "--port=8300"
    args = plan.router.args
    assert args[args.index("--service-discovery-port") + 1] == "8300"
    policy = plan.one("NetworkPolicy", f"qwen-engines-{plan.plan.revision[:8]}")
    assert {"protocol": "TCP", "port": 8300} in policy["spec"]["ingress"][1]["ports"]


def test_the_served_name_is_what_the_model_is_called() -> None:
    assert render(pair()).prefill.flag("--served-model-name") == "Qwen3-8B"
    named = render(pair(model={"uri": "hf://Qwen/Qwen3-8B", "name": "chat"}))
    assert named.decode.flag("--served-model-name") == "chat"


@pytest.mark.parametrize(
    ("uri", "reference"),
    [
        ("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("s3://models/qwen", "s3://models/qwen"),
        ("file:///models/qwen", "/models/qwen"),
        ("pvc://weights/a/qwen", "/var/lib/kvserving/claims/weights/a/qwen"),
    ],
)
def test_each_model_source_reaches_vllm(uri: str, reference: str) -> None:
    for engine in render(pair(model={"uri": uri})).engines:
        assert engine.flag("--model") == reference


def test_a_model_on_a_claim_is_mounted_read_only() -> None:
    engine = render(pair(model={"uri": "pvc://weights/a"})).prefill
    volume = engine.volume("/var/lib/kvserving/claims/weights")
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}


def test_startup_has_time_for_the_model() -> None:
    """1.9"""
    for timeout, least in (("30m", 1800), ("45m", 2700)):
        probe = render(pair(prefill={"startupTimeout": timeout})).prefill.container["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == least


def test_readiness_does_not_flap() -> None:
    """1.9"""
    for engine in render(pair()).engines:
        probe = engine.container["readinessProbe"]
        assert probe["periodSeconds"] * probe["successThreshold"] >= 8


def test_liveness_is_tolerant() -> None:
    """1.9"""
    for engine in render(pair()).engines:
        probe = engine.container["livenessProbe"]
        assert probe["periodSeconds"] >= 10
        assert probe["failureThreshold"] >= 3


def test_an_engine_or_router_that_stopped_is_killed_within_a_minute() -> None:
    """1.9"""
    plan = render(pair(prefill={"drainTimeout": "10m"}, transfer={"lease": "10m"}))
    for one in (*plan.engines, plan.router):
        probe = one.container["livenessProbe"]
        found = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
        assert found + probe["terminationGracePeriodSeconds"] < 60


def test_probe_values_of_the_users_are_rendered_as_given() -> None:
    """1.9"""
    probe = {"failureThreshold": 120, "initialDelaySeconds": 900, "periodSeconds": 30}
    template = {"spec": {"containers": [{"name": "engine", "startupProbe": probe}]}}
    rendered = render(pair(prefill={"template": template})).prefill.container["startupProbe"]
    assert {key: rendered[key] for key in probe} == probe
    assert rendered["httpGet"] == {"path": "/health", "port": "http"}


def test_running_requests_are_finished_before_the_stop() -> None:
    """1.10"""
    engine = render(pair(decode={"drainTimeout": "90s"})).decode
    assert engine.flag("--shutdown-timeout") == "90"
    command = engine.container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python3", "-m", "kvserving_connector.drain", "--timeout=90", "--port=8000"]


def test_the_grace_period_covers_reaction_drain_lease_and_margin() -> None:
    """1.10"""
    plan = render(pair(prefill={"drainTimeout": "90s"}, decode={"drainTimeout": "2m"}, transfer={"lease": "60s"}))
    assert plan.prefill.pod["terminationGracePeriodSeconds"] == 3 + 90 + 60 + 10
    assert plan.decode.pod["terminationGracePeriodSeconds"] == 3 + 120 + 10


def test_the_router_outlives_its_longest_request() -> None:
    """1.10"""
    plan = render(pair(router={"requestTimeout": "20m"}))
    assert plan.router.pod["terminationGracePeriodSeconds"] > 1200 + 5


@pytest.mark.parametrize(
    ("piece", "path"),
    [
        ({"spec": {"enableServiceLinks": True}}, "spec.enableServiceLinks"),
        ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, "spec.terminationGracePeriodSeconds"),
        ({"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}}, "containers[engine].command"),
        ({"spec": {"containers": [{"name": "engine", "args": ["x"]}]}}, "containers[engine].args"),
        ({"spec": {"containers": [{"name": "engine", "image": "x"}]}}, "containers[engine].image"),
        ({"spec": {"containers": [{"name": "engine", "envFrom": []}]}}, "containers[engine].envFrom"),
        ({"spec": {"containers": [{"name": "engine", "env": [{"name": "HOME", "value": "/"}]}]}}, "HOME"),
        ({"spec": {"containers": [{"name": "engine", "volumeMounts": [{"name": "keys", "mountPath": "/k"}]}]}}, "keys"),
        ({"spec": {"containers": [{"name": "engine", "volumeMounts": [{"name": "x", "mountPath": "/etc"}]}]}}, "/etc"),
        ({"spec": {"volumes": [{"name": "keys"}]}}, "spec.volumes"),
        ({"spec": {"initContainers": [{"name": "connector"}]}}, "spec.initContainers"),
        ({"metadata": {"labels": {"kvserving.dev/role": "decode"}}}, "metadata.labels"),
        ({"metadata": {"annotations": {"smg.ai/kv-connector": "x"}}}, "metadata.annotations"),
        ({"spec": {"containers": "engine"}}, "spec.containers"),
        ({"speck": {}}, "template.speck"),
    ],
)
def test_pieces_of_the_operators_are_refused_in_a_template(piece: dict[str, object], path: str) -> None:
    report = faults(pair(prefill={"template": piece}))
    assert "spec.prefill.template." in report
    assert path in report


def test_a_template_is_merged_by_name() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "securityContext": {"fsGroup": 7},
            "volumes": [{"name": "mine", "emptyDir": {}}],
            "containers": [
                {"name": "engine", "volumeMounts": [{"name": "mine", "mountPath": "/mine"}], "env": None},
                {"name": "helper", "image": "helper"},
            ],
        },
    }
    plain, merged = render(pair()).prefill, render(pair(prefill={"template": template})).prefill
    assert merged.template["metadata"]["labels"] == {**plain.template["metadata"]["labels"], "team": "a"}
    assert merged.pod["nodeSelector"] == {"pool": "gpu"}
    assert merged.pod["securityContext"] == {**plain.pod["securityContext"], "fsGroup": 7}
    assert merged.pod["volumes"] == [*plain.pod["volumes"], {"name": "mine", "emptyDir": {}}]
    assert merged.container["env"] == plain.container["env"]
    assert merged.volume("/mine") == {"name": "mine", "emptyDir": {}}
    assert [container["name"] for container in merged.pod["containers"]] == ["engine", "helper"]
