"""Who may reach what, and where secrets are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests import specs
from tests.plan.support import Rendered, case, pair, render

EVERYTHING = [path.stem[:2] for path in specs.accepted()]


def engine_policy(plan: Rendered) -> dict[str, Any]:
    (policy,) = (o for o in plan.all("NetworkPolicy") if "-engines-" in o["metadata"]["name"])
    spec: dict[str, Any] = policy["spec"]
    return spec


def test_the_guard_stands_in_every_engine() -> None:
    shapes: tuple[dict[str, Any], ...] = (pair(), {"decode": {}})
    for spec in shapes:
        for engine in render(spec).engines:
            assert [flag.value for flag in engine.flags("--middleware")] == ["kvserving_connector.guard.Guard"]


def test_both_roles_mount_the_signing_key_and_nothing_else_of_the_secret() -> None:
    plan = render(pair())
    for engine in plan.engines:
        secret = engine.volume("/etc/kvserving/keys")["secret"]
        assert secret["secretName"] == "qwen-keys"
        assert secret["items"] == [{"key": "signing", "path": "signing"}]
        assert secret["defaultMode"] == 0o400
        assert engine.env["KVSERVING_SIGNING_KEY_FILE"] == "/etc/kvserving/keys/signing"


def test_the_router_never_sees_the_signing_key() -> None:
    secret = render(pair()).router.volume("/etc/kvserving/keys")["secret"]
    assert [item["key"] for item in secret["items"]] == ["router-admin"]


def test_keys_are_made_not_written() -> None:
    plan = render(pair()).plan
    assert [(s.name, dict(s.keys)) for s in plan.generated_secrets] == [
        ("qwen-keys", {"signing": 32, "router-admin": 32})
    ]


@pytest.mark.parametrize("number", EVERYTHING)
def test_no_plan_holds_a_secret_object(number: str) -> None:
    assert "Secret" not in case(number).kinds()


def test_engines_accept_peers_on_every_port_and_others_on_http_only() -> None:
    plan = render(pair())
    peers, others = engine_policy(plan)["ingress"]
    assert "ports" not in peers
    (pods,) = peers["from"]
    assert pods["podSelector"]["matchLabels"] == {
        "kvserving.dev/name": "qwen",
        "kvserving.dev/revision": plan.plan.revision,
    }
    assert others["ports"] == [{"protocol": "TCP", "port": 8000}]


def test_engines_accept_the_router_of_their_own_revision() -> None:
    plan = render(pair())
    router = engine_policy(plan)["ingress"][1]["from"][0]["podSelector"]["matchLabels"]
    assert router["kvserving.dev/role"] == "router"
    assert router["kvserving.dev/revision"] == plan.plan.revision


def test_engines_accept_operator_and_monitoring() -> None:
    spaces = [
        source["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for source in engine_policy(render(pair()))["ingress"][1]["from"][1:]
    ]
    assert spaces == ["kvserving-system", "monitoring"]


def test_only_engines_of_the_object_reach_its_store() -> None:
    plan = case("05")
    (rule,) = plan.one("NetworkPolicy", "qwen-valkey-store")["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 6379}]
    (pods,) = rule["from"]
    assert pods["podSelector"]["matchLabels"] == {"kvserving.dev/name": "qwen-valkey"}
    assert pods["podSelector"]["matchExpressions"][0]["values"] == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        (
            "redis://kv.cache.svc:6379",
            {
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "cache"}}}],
                "ports": [{"protocol": "TCP"}],
            },
        ),
        (
            "redis://10.1.2.3:7000",
            {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 7000}]},
        ),
        ("redis://kv.example.org", {"ports": [{"protocol": "TCP", "port": 6379}]}),
        ("valkeys://kv.example.org", {"ports": [{"protocol": "TCP", "port": 6379}]}),
    ],
)
def test_the_way_to_an_external_store_is_open(url: str, rule: dict[str, Any]) -> None:
    plan = render(pair(cache={"l2": {"type": "external", "url": url}}))
    assert rule in engine_policy(plan)["egress"]


def test_no_way_out_is_open_to_everywhere() -> None:
    plan = render(pair(cache={"l2": {"type": "mooncake", "url": "mooncake://master.example.org"}}))
    assert [rule for rule in engine_policy(plan)["egress"] if not rule] == []


@pytest.mark.parametrize("name", ["HF_ENDPOINT", "AWS_ENDPOINT_URL", "https_proxy"])
def test_the_way_to_an_endpoint_of_the_environment_is_open(name: str) -> None:
    rule = {"ports": [{"protocol": "TCP", "port": 3128}]}
    for section in ("engine", "prefill"):
        spec = pair()
        spec[section] = {"env": [{"name": name, "value": "http://mirror.example.org:3128"}]}
        assert rule in engine_policy(render(spec))["egress"]
    assert rule not in engine_policy(render(pair()))["egress"]


def test_a_router_of_the_users_is_known_by_two_labels() -> None:
    router = engine_policy(render(pair(router={"type": "external"})))["ingress"][1]["from"][0]["podSelector"]
    assert router == {"matchLabels": {"kvserving.dev/name": "qwen", "kvserving.dev/role": "router"}}


def test_policies_can_be_switched_off() -> None:
    assert "NetworkPolicy" not in render(pair(networkPolicy={"enabled": False})).kinds()


def test_the_routers_role_reads_pods_and_nothing_more() -> None:
    (role,) = render(pair()).all("Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


@pytest.mark.parametrize("number", EVERYTHING)
def test_no_key_is_in_arguments(number: str) -> None:
    for name, pod in case(number).pods():
        for container in pod["containers"]:
            words = json.dumps([container.get("command"), container.get("args")])
            for flag in ("--api-key", "--control-plane-api-keys", "--requirepass", "--hf-token", "HF_TOKEN"):
                assert flag not in words, (name, flag)


@pytest.mark.parametrize("number", EVERYTHING)
def test_credentials_come_by_reference(number: str) -> None:
    for name, pod in case(number).pods():
        for container in pod["containers"]:
            for variable in container.get("env", ()):
                secret = any(word in variable["name"] for word in ("TOKEN", "PASSWORD", "SECRET", "ACCESS_KEY"))
                secret = secret and "TOKENS" not in variable["name"] and not variable["name"].endswith("_FILE")
                assert not secret or "secretKeyRef" in variable["valueFrom"], (name, variable["name"])
