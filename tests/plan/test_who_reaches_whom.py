"""Who reaches whom through a service's network policies: what is needed, and nothing else.

The policies are evaluated by ``policies`` in a cluster with two revisions of the service, a neighbour in its namespace,
a namesake in another one, and people, programs and machines that have no business there.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests import specs
from tests.examples import files
from tests.plan.fields import VALUES
from tests.plan.policies import Address, Cluster, End, Pod, Protocol, pods
from tests.plan.support import edited, pair

from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.plan.labels import NAME, REVISION, ROLE
from kvserving_operator.plan.planning import check, plan
from kvserving_operator.reasons import Reason

EXAMPLES = Path(__file__).parents[2] / "examples"
OPERATOR = Pod("operator", "kvserving-system", {"app.kubernetes.io/name": "kvserving-operator"})
PROMETHEUS = Pod("prometheus", "monitoring", {"app": "prometheus"})
DNS = Pod("dns", "kube-system", {"k8s-app": "kube-dns"})
CACHE = Pod("cache", "cache", {"app": "valkey"})
OTHERS: tuple[End, ...] = (
    OPERATOR,
    PROMETHEUS,
    DNS,
    CACHE,
    Pod("neighbour", "default", {"app": "web"}),
    Pod("stranger", "elsewhere", {}),
    Pod("beside the operator", "kvserving-system", {"app": "web"}),
    Pod("like an operator", "default", {"app.kubernetes.io/name": "kvserving-operator"}),
    Address("hub", "203.0.113.7"),
    Address("machine metadata", "169.254.169.254"),
    Address("numbered store", "10.0.0.1"),
)
QWEN = Pod("any of the service's", "default", {NAME: "qwen"})
PORTS = (22, 53, 443, 5353, 5600, 6379, 7000, 8000, 8081, 9000, 9001, 29000, 45678, 50051)

# Ways out by what the spec says: (namespace of pods or address, None for any; port, None for any).
Way = tuple[str | None, int | None]
URLS: Mapping[str, Way] = {
    "redis://kv.cache.svc:6379": ("cache", None),
    "redis://kv-store.cache.svc:6379": ("cache", None),
    "rediss://kv.cache.svc.cluster.local:7000": ("cache", None),
    "redis://10.0.0.1:7000": ("10.0.0.1", 7000),
    "valkey://store.example.org": (None, 6379),
    "valkeys://store.example.org": (None, 6379),
    "mooncake://master.example.org:50051": (None, 50051),
    "mooncake://10.0.0.1:50051": ("10.0.0.1", 50051),
    "https://s3.example.org": (None, 443),
    "https://other.example.org:9000": (None, 9000),
    "http://minio.cache.svc:9000": ("cache", None),
    "http://proxy.example.org:9001": (None, 9001),
}


class World:
    """A service of ``spec`` among others, and what its policies should let through."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        seed = "1" if spec.get("engine", {}).get("kv", {}).get("hashSeed", "0") == "0" else "0"
        others = [
            (edited(spec, "engine.kv.hashSeed", seed), "qwen", "default"),
            (pair(cache={"l2": {"size": "8Gi"}}), "neighbour", "default"),
            (pair(cache={"l2": {"size": "8Gi"}}), "qwen", "tenant"),
        ]
        plans = [plan(serving_of(*about)) for about in ((spec, "qwen", "default"), *others)]
        objects = [obj for made in plans for obj in made.objects]
        unique = {(o["kind"], o["metadata"]["namespace"], o["metadata"]["name"]): o for o in objects}
        self.objects = list(unique.values())
        self.policies = [o for o in self.objects if o["kind"] == "NetworkPolicy"]
        # A user's own router is known by two labels.
        own = {NAME: "qwen", ROLE: "router"}
        users = [Pod("router of the user's", "default", own)] if self.unrouted else []
        self.ends: list[End] = [*pods(self.objects), *users, *OTHERS]

    @property
    def unrouted(self) -> bool:
        return self.spec.get("router", {}).get("type") in ("external", "none")

    @cached_property
    def http(self) -> int:
        args = [*self.spec.get("engine", {}).get("args", ()), *self.spec["decode"].get("args", ())]
        return max([8000, *(int(arg.removeprefix("--port=")) for arg in args if arg.startswith("--port="))])

    @cached_property
    def ways(self) -> set[Way]:
        """Where engines have to go beside peers, their own store and DNS."""
        spec, found = self.spec, set[Way]()
        l2 = spec.get("cache", {}).get("l2", {})
        if l2.get("type") in ("external", "mooncake"):
            found.add(URLS[l2["url"]])
        if l2.get("type") == "s3":
            found.add(URLS[l2["endpoint"]] if "endpoint" in l2 else (None, 443))
        model = spec.get("model", {"uri": "hf://Qwen/Qwen3-8B"})
        for uri in (model["uri"], *(lora["uri"] for lora in model.get("loras", ()))):
            if uri.startswith(("hf://", "s3://")):
                found.add((None, 443))
        for section in ("engine", "prefill", "decode"):
            for variable in (spec.get(section) or {}).get("env", ()):
                if variable["name"] in ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "HTTPS_PROXY"):
                    found.add(URLS[variable["value"]])
        return found

    # From what engines, routers and stores are for, and not from the policies.

    def leaves(self, source: End, target: End, port: int, protocol: str) -> bool:
        """Whether ``source`` has to be able to open a connection."""
        if kind(source) == "store":
            return False
        if kind(source) != "engine" or peers(source, target):
            return True
        if port == 53 or (port == 5353 and isinstance(target, Pod)):
            return True
        if protocol != "TCP":
            return False
        if kind(target) == "store" and same_service(source, target) and port == 6379:
            return True
        if not same_service(source, QWEN):
            # The others download their model from the hub.
            return port == 443
        return any(
            (where in (None, target.namespace if isinstance(target, Pod) else target.ip)) and at in (None, port)
            for where, at in self.ways
        )

    def enters(self, source: End, target: End, port: int, protocol: str) -> bool:
        """Whether ``target`` has to accept it."""
        # A router of the user's is the user's to protect.
        if kind(target) == "other" or (kind(target) == "router" and self.unrouted and same_service(target, QWEN)):
            return True
        if kind(target) == "engine" and peers(source, target):
            return True
        if protocol != "TCP":
            return False
        watches = source in (OPERATOR, PROMETHEUS)
        if kind(target) == "store":
            return port == 6379 and kind(source) == "engine" and same_service(source, target)
        if kind(target) == "router":
            return port == 8000 or (port == 29000 and watches)
        own = same_service(target, QWEN)
        return port == (self.http if own else 8000) and (watches or self._routes(source, target))

    def _routes(self, source: End, target: End) -> bool:
        if kind(source) != "router" or not same_service(source, target):
            return False
        return same_revision(source, target) or (self.unrouted and same_service(target, QWEN))

    def differences(self, policies: list[Any] | None = None) -> Iterator[str]:
        """What the policies allow too much, or forbid."""
        cluster = Cluster(tuple(self.policies if policies is None else policies))
        asked: list[tuple[int, Protocol]] = [(port, "TCP") for port in sorted({*PORTS, self.http})]
        asked += [(port, "UDP") for port in (53, 5353, 5600)]
        for source, target in itertools.product(self.ends, self.ends):
            if source is target or not (same_service(source, QWEN) or same_service(target, QWEN)):
                continue
            for port, protocol in asked:
                for word, wanted, found in (
                    ("leave", self.leaves, cluster.leaves),
                    ("enter", self.enters, cluster.enters),
                ):
                    right = wanted(source, target, port, protocol)
                    if found(source, target, port, protocol) is not right:
                        verb = "must" if right else "may not"
                        yield f"{source.name} -> {target.name}:{port}/{protocol} {verb} {word}"


def serving_of(spec: Mapping[str, Any], name: str, namespace: str) -> KVServing:
    full = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, **spec}
    return KVServing.model_validate({"metadata": {"name": name, "namespace": namespace}, "spec": full})


def kind(end: End) -> str:
    if not isinstance(end, Pod) or NAME not in end.labels:
        return "other"
    return {"prefill": "engine", "decode": "engine"}.get(end.labels[ROLE], end.labels[ROLE])


def same_service(one: End, other: End) -> bool:
    if not isinstance(one, Pod) or not isinstance(other, Pod):
        return False
    return (one.namespace, one.labels.get(NAME)) == (other.namespace, other.labels.get(NAME))


def same_revision(one: End, other: End) -> bool:
    assert isinstance(one, Pod)
    assert isinstance(other, Pod)
    return same_service(one, other) and one.labels.get(REVISION) == other.labels.get(REVISION) is not None


def peers(one: End, other: End) -> bool:
    return kind(one) == kind(other) == "engine" and same_revision(one, other)


def chosen(**about: Any) -> dict[str, Any]:
    return {key: value for key, value in about.items() if value is not None}


L2S: tuple[dict[str, Any] | None, ...] = (
    None,
    {"size": "8Gi"},
    {"size": "8Gi", "replicas": 3, "roles": ["prefill", "decode"]},
    {"type": "filesystem", "size": "8Gi"},
    {"type": "s3", "url": "s3://bucket/path", "region": "eu"},
    *({"type": "s3", "url": "s3://bucket/path", "endpoint": url} for url in URLS if url.startswith("http")),
    *({"type": "external", "url": url} for url in URLS if url.startswith(("redis", "valkey"))),
    *({"type": "mooncake", "url": url} for url in URLS if url.startswith("mooncake")),
)
MODELS: tuple[dict[str, Any], ...] = (
    {"uri": "hf://Qwen/Qwen3-8B"},
    {"uri": "s3://models/a"},
    {"uri": "pvc://weights/a"},
    {"uri": "pvc://weights/a", "loras": [{"name": "sql", "uri": "hf://o/sql"}]},
    {"uri": "file:///m"},
)
ENVS: tuple[list[dict[str, str]], ...] = (
    [],
    [{"name": "HF_ENDPOINT", "value": "https://other.example.org:9000"}],
    [{"name": "AWS_ENDPOINT_URL", "value": "http://minio.cache.svc:9000"}],
    [{"name": "HTTPS_PROXY", "value": "http://proxy.example.org:9001"}],
)


@st.composite
def services(draw: st.DrawFn) -> dict[str, Any]:
    """A spec whose policies differ: where KV and models come from, ports, roles and routers, and some other field."""
    spec: dict[str, Any] = {"decode": {}, "model": draw(st.sampled_from(MODELS))}
    if draw(st.booleans()):
        spec["prefill"] = {}
    if (l2 := draw(st.sampled_from(L2S))) is not None:
        spec["cache"] = {"l2": l2 if "prefill" in spec else {k: v for k, v in l2.items() if k != "roles"}}
    spec["router"] = {"type": draw(st.sampled_from(["smg", "vllm-router", "external", "none"]))}
    spec["engine"] = {"args": draw(st.sampled_from([[], ["--port=9001"]])), "env": draw(st.sampled_from(ENVS))}
    spec["decode"]["env"] = draw(st.sampled_from(ENVS))
    for path in draw(st.lists(st.sampled_from(ASIDE), max_size=3, unique=True)):
        spec = edited(spec, path, draw(st.sampled_from(VALUES[path])))
    return spec


ASIDE = sorted(path for path in VALUES if path.split(".")[0] in ("transfer", "kvcached", "rollout"))
ASIDE += ["decode.parallelism.data", "decode.replicas", "suspend", "monitoring.enabled", "router.gateway.parentRefs"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(services())
def test_what_is_needed_is_open_and_nothing_else(spec: dict[str, Any]) -> None:
    parsed = serving_of(spec, "qwen", "default")
    assume(not check(parsed))
    assert list(World(spec).differences()) == []


def written(path: Path) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(path.read_text())["spec"]
    return spec


FILES = [*specs.accepted(), *files()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_so_for_every_example(path: Path) -> None:
    assert list(World(written(path)).differences()) == []


RICH = pair(cache={"l2": {"size": "8Gi"}}, engine={"env": ENVS[2]})


def test_every_rule_is_needed_and_a_wider_one_is_noticed() -> None:
    world = World(RICH)
    own = [
        o for o in world.policies if (o["metadata"]["namespace"], o["metadata"]["labels"][NAME]) == ("default", "qwen")
    ]
    tried = 0
    for policy in own:
        others = [o for o in world.policies if o is not policy]
        assert any(world.differences(others)), policy["metadata"]["name"]
        for direction, number in ((d, n) for d in ("ingress", "egress") for n in range(len(policy["spec"].get(d, ())))):
            rule = policy["spec"][direction][number]
            peers_of = "from" if direction == "ingress" else "to"
            parts: list[str | None] = [None, *(part for part in (peers_of, "ports") if part in rule)]
            for part in parts:
                changed = copy.deepcopy(dict(policy))
                if part is None:
                    del changed["spec"][direction][number]
                else:
                    del changed["spec"][direction][number][part]
                assert any(world.differences([*others, changed])), (policy["metadata"]["name"], rule, part)
                tried += 1
    assert tried > 30


HOST = {"template": {"spec": {"hostNetwork": True}}}


def told(spec: dict[str, Any]) -> list[str]:
    notices = plan(serving_of(spec, "qwen", "default")).notices
    return [str(notice) for notice in notices if notice.reason is Reason.POLICY_WITHOUT_EFFECT]


def test_pods_on_their_hosts_network_are_told_to_have_no_policy() -> None:
    (both,) = told(pair(prefill=HOST, decode=HOST))
    assert "prefill and decode engines are on their host's network" in both
    assert told(pair()) == told(pair(prefill=HOST, networkPolicy={"enabled": False})) == []


def test_where_one_role_alone_is_on_the_host_no_kv_moves_and_it_is_told() -> None:
    spec = pair(prefill=HOST, model={"uri": "pvc://weights/a"})
    (one,) = told(spec)
    assert "no KV moves" in one
    made = plan(serving_of(spec, "qwen", "default")).objects
    cluster = Cluster(tuple(o for o in made if o["kind"] == "NetworkPolicy"))
    (prefill,) = (end for end in pods(made) if isinstance(end, Address))
    (decode,) = (end for end in pods(made) if "decode" in end.name)
    assert not cluster.leaves(decode, prefill, 5600)
    assert not cluster.enters(prefill, decode, 5600)


def test_a_policy_beside_ours_opens_what_it_says_as_the_page_has_it() -> None:
    page = (EXAMPLES.parent / "docs" / "network.md").read_text()
    added = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    world = World(pair(model={"uri": "pvc://weights/a"}))
    collector = Pod("collector", "tracing", {})
    for engine in (end for end in world.ends if kind(end) == "engine" and same_service(end, QWEN)):
        before, after = Cluster(tuple(world.policies)), Cluster((*world.policies, added))
        assert not before.leaves(engine, collector, 4317)
        assert after.leaves(engine, collector, 4317)
        assert not after.leaves(engine, collector, 443)
    assert list(world.differences([*world.policies, added])) == []
