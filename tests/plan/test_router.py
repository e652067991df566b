"""The router gets flags that it knows, and pairs only engines of its own revision."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from tests import specs
from tests.plan.support import LOCAL, case, faults, pair, render

from kvserving_operator.plan.types import CLUSTER, Site

POLICIES = ["cacheAware", "powerOfTwo", "roundRobin"]


def parse(args: list[str]) -> Any:
    """The router's own reading of its arguments."""
    kind, *flags = (arg.replace("$(KVSERVING_BIND_ADDRESS)", "127.0.0.1") for arg in args)
    module = importlib.import_module("smg.launch_router" if kind == "smg" else "vllm_router.launch_router")
    return module.parse_router_args(flags)


CASES = [(path.stem[:2], site) for path in specs.accepted() for site in (Site("cluster"), LOCAL)]


# Engines of several nodes are refused on one machine.
@pytest.mark.parametrize(("number", "site"), [case for case in CASES if case != ("13", LOCAL)])
def test_the_pinned_router_accepts_the_arguments_of_every_case(number: str, site: Site) -> None:
    args = case(number, site).router.args
    pytest.importorskip("smg" if args[0] == "smg" else "vllm_router")
    assert parse(args).port == 8000


@pytest.mark.parametrize("kind", ["smg", "vllm-router"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefill", [True, False])
def test_every_policy_is_one_that_the_pinned_router_knows(kind: str, policy: str, prefill: bool) -> None:
    spec = {**(pair() if prefill else {}), "router": {"type": kind, "policy": policy}}
    if (kind, policy) == ("vllm-router", "powerOfTwo"):
        assert "spec.router.policy" in faults(spec)
        return
    parse(render(spec).router.args)


def test_smg_gets_what_was_measured() -> None:
    pytest.importorskip("smg")
    read = parse(render(pair(router={"requestTimeout": "20m"})).router.args)
    assert read.pd_disaggregation
    assert (read.prefill_policy, read.decode_policy) == ("cache_aware", "power_of_two")
    assert read.power_of_two_load_metric == "least_requests"
    assert (read.health_check_interval_secs, read.health_failure_threshold) == (2, 2)
    assert (read.cb_failure_threshold, read.cb_timeout_duration_secs, read.cb_success_threshold) == (3, 2, 1)
    assert read.retry_max_retries == 8
    assert read.request_timeout_secs == read.shutdown_grace_period_secs == 1200
    assert read.worker_startup_check_interval == 2
    assert not read.remove_unhealthy_workers
    assert read.history_backend == "none"
    assert (read.health_check_port, read.prometheus_port) == (8081, 29000)


@pytest.mark.parametrize("kind", ["smg", "vllm-router"])
def test_only_pods_of_its_own_revision_are_selected(kind: str) -> None:
    plan = render(pair(router={"type": kind}))
    pytest.importorskip("smg" if kind == "smg" else "vllm_router")
    read = parse(plan.router.args)
    for role, selector in (("prefill", read.prefill_selector), ("decode", read.decode_selector)):
        assert selector == {
            "kvserving.dev/name": "qwen",
            "kvserving.dev/role": role,
            "kvserving.dev/revision": plan.plan.revision,
        }
        labels = plan.role(role).template["metadata"]["labels"]
        assert selector.items() <= labels.items()


def test_engines_are_annotated_with_the_connector_that_the_router_relays() -> None:
    for spec in (pair(), pair(cache={"l1": {"size": "4Gi"}})):
        for engine in render(spec).engines:
            assert engine.template["metadata"]["annotations"]["smg.ai/kv-connector"] == "NixlConnector"


def test_a_local_router_reads_engines_from_a_file() -> None:
    args = render(pair(), site=LOCAL).router.args
    assert args[args.index("--discovery-file") + 1] == "$(KVSERVING_DISCOVERY_FILE)"
    assert "--service-discovery" not in args
    named = render(pair(), site=Site("local", discovery_file="/run/engines.json")).router.args
    assert named[named.index("--discovery-file") + 1] == "/run/engines.json"


def test_every_listener_takes_the_pods_address() -> None:
    for kind in ("smg", "vllm-router"):
        args = render(pair(router={"type": kind})).router.args
        for flag in ("--host", "--prometheus-host"):
            assert args[args.index(flag) + 1] == "$(KVSERVING_BIND_ADDRESS)"


def test_readiness_needs_both_pools() -> None:
    container = render(pair()).router.container
    assert container["readinessProbe"]["httpGet"] == {"path": "/readiness", "port": "health"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/liveness", "port": "health"}
    other = render(pair(router={"type": "vllm-router"})).router.container
    assert other["readinessProbe"]["httpGet"] == {"path": "/readiness", "port": "http"}


def test_the_service_takes_every_revisions_routers() -> None:
    service = render(pair(router={"service": {"type": "LoadBalancer", "port": 8080}})).one("Service", "qwen")["spec"]
    assert service["type"] == "LoadBalancer"
    assert service["ports"] == [{"name": "http", "port": 8080, "targetPort": "http"}]
    marks = {"name": "qwen", "role": "router", "traffic": "on"}
    assert service["selector"] == {f"kvserving.dev/{key}": value for key, value in marks.items()}


@pytest.mark.parametrize("kind", ["external", "none"])
def test_a_router_of_the_users_own_leaves_engines_only(kind: str) -> None:
    plan = render(pair(router={"type": kind}))
    assert len(plan.all("Deployment")) == 2
    assert not plan.kinds() & {"Service", "ServiceAccount"}
    assert not [made for made in plan.plan.objects if made["metadata"]["labels"].get("kvserving.dev/role") == "router"]


def test_a_route_leads_from_the_gateway_to_the_service() -> None:
    (route,) = case("12").all("HTTPRoute")
    assert route["spec"]["parentRefs"] == [{"name": "public"}]
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": "everything", "port": 80}]}]


def test_clients_keys_are_checked_by_smg_from_a_file() -> None:
    router = render(pair(router={"apiKeySecretRef": "api-key"})).router
    assert router.env["KVSERVING_ROUTER_API_KEY_FILE"] == "/etc/kvserving/api-key/api-key"
    assert router.volume("/etc/kvserving/api-key")["secret"]["secretName"] == "api-key"


def test_a_router_that_checks_no_key_says_so() -> None:
    plan = render(pair(router={"type": "vllm-router", "apiKeySecretRef": "api-key"}))
    assert [n.path for n in plan.plan.notices if n.reason == "RouterOpen"] == ["spec.router.apiKeySecretRef"]
    assert "KVSERVING_ROUTER_API_KEY_FILE" not in plan.router.env


def test_one_router_is_planned_for_one_machine() -> None:
    def routers(site: Site, **router: Any) -> list[int]:
        objects = render(pair(router=router), site=site).plan.objects
        named = (o for o in objects if o["kind"] == "Deployment" and o["metadata"]["name"].startswith("qwen-router"))
        return [o["spec"]["replicas"] for o in named]

    assert (routers(LOCAL), routers(LOCAL, replicas=3)) == ([1], [1])
    assert routers(CLUSTER, replicas=3) == [3]
