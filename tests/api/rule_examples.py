"""For every rule an object that it lets pass and one that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.api.flag_examples import (
    ENGINE_FREE_ARGS,
    FREE_ARGS,
    FREE_VARIABLES,
    KVCACHED_FLAGS,
    OWNED_FLAGS,
    OWNED_VARIABLES,
    SHARED_FLAGS,
    SHARED_VARIABLES,
)


@dataclass(frozen=True)
class Example:
    """``good`` and ``bad`` are changes of the small valid object; ``rule`` is the rule's id."""

    rule: str
    good: dict[str, Any]
    bad: dict[str, Any]


SECTIONS = ("engine", "prefill", "decode")
ROLES = ("prefill", "decode")
L2 = "spec.cache.l2"
MANAGED = {"type": "valkey", "size": "1Gi"}
S3 = {"type": "s3", "url": "s3://bucket/prefix"}


def _arguments() -> Iterator[Example]:
    for section in SECTIONS:
        place = f"spec.{section}.args"
        free = ENGINE_FREE_ARGS if section == "engine" else FREE_ARGS
        flags = OWNED_FLAGS if section == "engine" else {**OWNED_FLAGS, **SHARED_FLAGS}
        for flag, forms in flags.items():
            for form in forms:
                yield Example(f"{place}: no --{flag}", {place: free}, {place: ["--max-num-seqs", "2", form]})
        for flag, forms in KVCACHED_FLAGS.items():
            for form in forms:
                yield Example(
                    f"spec: no --{flag} in {section} with kvcached",
                    {place: [form, "1"], "spec.kvcached": {"enabled": False}},
                    {place: [form, "1"], "spec.kvcached": {"enabled": True}},
                )
    for role in ROLES:
        yield Example(
            f"spec: one --port for {role}",
            {f"spec.{role}.args": ["--port", "8300"]},
            {f"spec.{role}.args": ["--port", "8300"], "spec.engine.args": ["--port=8301"]},
        )


def _environment() -> Iterator[Example]:
    for section in SECTIONS:
        place = f"spec.{section}.env"
        variables = OWNED_VARIABLES if section == "engine" else {**OWNED_VARIABLES, **SHARED_VARIABLES}
        shared = [name for names in SHARED_VARIABLES.values() for name in names] if section == "engine" else []
        good = {place: [*FREE_VARIABLES, *({"name": name, "value": "1"} for name in shared)]}
        for name, examples in variables.items():
            for variable in examples:
                bad = {place: [{"name": "A", "value": "b"}, {"name": variable, "value": "c"}]}
                yield Example(f"{place}[*]: no {name} variables", good, bad)
        for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            bad = {place: [{"name": variable, "value": "x:1,expandable_segments:True"}]}
            yield Example(f"{place}[*]: no allocator variables", good, bad)
        both = {"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        yield Example(f"{place}[*]: one source", good, {place: [both]})
        yield Example(f"{place}: names unique", good, {place: [{"name": "A", "value": "1"}, {"name": "A"}]})


def _durations_and_sizes() -> Iterator[Example]:
    for path in (
        *(f"spec.{role}.{field}" for role in ROLES for field in ("startupTimeout", "drainTimeout")),
        "spec.transfer.lease",
        "spec.transfer.verify.interval",
        "spec.router.requestTimeout",
        "spec.rollout.progressDeadline",
    ):
        yield Example(f"{path}: greater than zero", {path: "1h30m"}, {path: "0s"})
    yield Example(
        f"{L2}.loadTimeout: greater than zero", {L2: {**MANAGED, "loadTimeout": "5s"}}, {L2: {"loadTimeout": "0m"}}
    )
    for path in ("spec.model.cache.size", "spec.cache.l1.size", f"{L2}.size"):
        for good, bad in (("64Gi", "-8Gi"), ("0.5Gi", "0Gi"), (1073741824, 0), (1, -1)):
            yield Example(f"{path}: greater than zero", {path: good}, {path: bad})


def _roles() -> Iterator[Example]:
    for role in ROLES:
        at = f"spec.{role}"
        scaler = {"max": 3}
        yield Example(
            f"{at}: replicas or autoscaling",
            {f"{at}.autoscaling": scaler},
            {at: {"replicas": 1, "autoscaling": scaler}},
        )
        yield Example(
            f"{at}: devices divide over nodes",
            {at: {"nodes": 2, "parallelism": {"tensor": 4}}},
            {at: {"nodes": 3, "parallelism": {"tensor": 4, "pipeline": 2}}},
        )
        scaling = f"{at}.autoscaling"
        yield Example(f"{scaling}: min not above max", {scaling: {"min": 3, "max": 3}}, {scaling: {"min": 4, "max": 3}})
        custom = {"max": 3, "metric": "custom"}
        named = {**custom, "metricName": "m", "target": 5}
        yield Example(f"{scaling}: custom metric has a name", {scaling: named}, {scaling: custom})
        yield Example(
            f"{scaling}: custom metric has a name", {scaling: named}, {scaling: {**custom, "metricName": "m"}}
        )
        yield Example(
            f"{scaling}: metric name only for custom", {scaling: named}, {scaling: {"max": 3, "metricName": "m"}}
        )
        for name in ("a/b", "a%b", ".", ".."):
            yield Example(
                f"{scaling}: metric name is one word",
                {scaling: {**named, "metricName": "a.b:c_d..."}},
                {scaling: {**named, "metricName": name}},
            )


def _second_tier() -> Iterator[Example]:
    external = {"type": "external", "url": "redis://store:6379"}
    filesystem = {"type": "filesystem", "size": "1Gi"}

    def example(rule: str, good: dict[str, Any], bad: dict[str, Any]) -> Example:
        return Example(f"{L2}: {rule}", {L2: good}, {L2: bad})

    yield example("url names its type", external, {"url": "redis://store:6379"})
    yield example("managed store has a size", filesystem, {"type": "filesystem"})
    yield example("managed store has a size", MANAGED, {"type": "valkey"})
    for kind in ("s3", "mooncake", "external"):
        yield example("unmanaged store has a url", S3, {"type": kind})
        yield example("size only for managed stores", {"size": "1Gi"}, {"type": kind, "url": "x", "size": "1Gi"})
    yield example("usage only for managed stores", {**MANAGED, "maxUsage": "80%"}, {**S3, "maxUsage": "80%"})
    yield example("url only for unmanaged stores", external, {**MANAGED, "url": "redis://store:6379"})
    yield example("shards only for valkey", {"size": "1Gi", "replicas": 3}, {**filesystem, "replicas": 3})
    yield example(
        "storage class only for filesystem", {**filesystem, "storageClass": "a"}, {**MANAGED, "storageClass": "a"}
    )
    mooncake = {"type": "mooncake", "url": "mooncake://host:50051"}
    for without in (filesystem, mooncake):
        refused = {**without, "secretRef": "a"}
        yield example("secret only for stores that ask for it", {**MANAGED, "secretRef": "a"}, refused)
    for field in ("endpoint", "region"):
        value = "https://s3.example.org"
        yield example(f"{field} only for s3", {**S3, field: value}, {**MANAGED, field: value})
    yield example("s3 url names a bucket", S3, {"type": "s3", "url": "https://s3.example.org/bucket"})
    yield example("external url is an address", external, {"type": "external", "url": "store:6379"})
    for url in (
        *("redis://user:secret@store:6379", "redis://user:se/cret@store:6379", "redis://store:6379?password=x"),
        *(
            "redis://store?PASSWORD=x",
            "redis://store?a=b&redis_Auth_Token=x",
            "redis://store;pw=x",
            "redis://store?key=x",
        ),
    ):
        yield Example(f"{L2}: no credentials in url", {L2: external}, {L2: {"type": "external", "url": url}})
    for url in ("mooncake://u:pw@h:1", "Mooncake://u:pw@h:1", "u:pw@h:1", "h:1?token=x"):
        yield Example(
            f"{L2}: no credentials in url",
            {L2: {"type": "mooncake", "url": "mooncake://h:1"}},
            {L2: {"type": "mooncake", "url": url}},
        )
    yield Example(
        f"{L2}: no credentials in url",
        {L2: {"type": "s3", "url": "s3://bucket/a@b/monkey=1"}},
        {L2: {"type": "s3", "url": "s3://bucket/a?secret_access_key=x"}},
    )
    for endpoint in (
        "https://user:secret@s3.example.org",
        "https://s3.example.org?token=x",
        "https://s3.example.org#x",
    ):
        yield Example(
            f"{L2}: endpoint without credentials",
            {L2: {**S3, "endpoint": "https://s3.example.org:9000/path"}},
            {L2: {**S3, "endpoint": endpoint}},
        )


def _model() -> Iterator[Example]:
    good_uris = [
        "hf://Qwen/Qwen3-8B",
        "hf://gpt2",
        "pvc://models/qwen",
        "pvc://models",
        "s3://bucket/qwen",
        "file:///m",
    ]
    bad_uris = ["Qwen/Qwen3-8B", "hf://", "http://example.org/m", "file:m", "s3://key:secret@bucket/x", "pvc:///x"]
    for good, bad in zip(good_uris, bad_uris, strict=True):
        yield Example("spec.model: known source", {"spec.model.uri": good}, {"spec.model.uri": bad})
        yield Example(
            "spec.model.loras[*]: known source",
            {"spec.model.loras": [{"name": "a", "uri": good}]},
            {"spec.model.loras": [{"name": "b", "uri": "hf://a/b"}, {"name": "a", "uri": bad}]},
        )
    adapter = {"name": "a", "uri": "hf://a/b"}
    yield Example(
        "spec.model.loras: names unique", {"spec.model.loras": [adapter]}, {"spec.model.loras": [adapter] * 2}
    )
    yield Example(
        "spec.model: adapter names differ from the model",
        {"spec.model.name": "b", "spec.model.loras": [adapter]},
        {"spec.model.name": "a", "spec.model.loras": [adapter]},
    )
    for uri in ("pvc://models/qwen", "file:///models/qwen"):
        yield Example(
            "spec.model: cache only where fetched",
            {"spec.model.cache": {"size": "1Gi"}},
            {"spec.model.uri": uri, "spec.model.cache": {"size": "1Gi"}},
        )
    cache = "spec.model.cache"
    yield Example(f"{cache}: claim or size", {cache: {"pvc": "a"}}, {cache: {"pvc": "a", "size": "1Gi"}})
    yield Example(f"{cache}: claim or size", {cache: {"size": "1Gi"}}, {cache: {}})
    yield Example(
        f"{cache}: storage class of a created claim",
        {cache: {"size": "1Gi", "storageClass": "a"}},
        {cache: {"pvc": "a", "storageClass": "a"}},
    )


def _rest() -> Iterator[Example]:
    yield Example("object: short name", {"metadata.name": "a" * 40}, {"metadata.name": "a" * 41})
    for good, bad in (("qwen3-0.6b", "0.6b-qwen"), ("a", "Qwen"), ("a-b", "a-")):
        yield Example("object: DNS name", {"metadata.name": good}, {"metadata.name": bad})
    yield Example("spec: prefill not zero", {"spec.prefill.replicas": 1}, {"spec.prefill.replicas": 0})
    yield Example(
        "spec: prefill not zero",
        {"spec.prefill.replicas": 0, "spec.decode.replicas": 0},
        {"spec.prefill.replicas": 0, "spec.decode.replicas": 2},
    )
    ratio = {"min": "1:4"}
    yield Example("spec: ratio needs prefill", {"spec.ratio": ratio}, {"spec.ratio": ratio, "spec.prefill": None})
    bounds = {"min": "1:4", "max": "2:1"}
    pair = "spec.prefill.replicas", "spec.decode.replicas"
    yield Example(
        "spec: replicas below min ratio",
        {"spec.ratio": bounds, pair[0]: 1, pair[1]: 4},
        {"spec.ratio": bounds, pair[0]: 1, pair[1]: 5},
    )
    yield Example(
        "spec: replicas above max ratio",
        {"spec.ratio": bounds, pair[0]: 2, pair[1]: 1},
        {"spec.ratio": bounds, pair[0]: 3, pair[1]: 1},
    )
    yield Example(
        "spec.ratio: min not above max", {"spec.ratio": bounds}, {"spec.ratio": {"min": "2:1", "max": "1:10"}}
    )
    for tier, value in (("l1", {"size": "1Gi"}), ("l2", MANAGED)):
        place = f"spec.cache.{tier}"
        yield Example(
            f"spec: {tier} roles exist",
            {place: {**value, "roles": ["decode"]}, "spec.prefill": None},
            {place: {**value, "roles": ["decode", "prefill"]}, "spec.prefill": None},
        )
    yield Example(
        "spec: kvcached needs a GPU",
        {"spec.kvcached.enabled": True, "spec.engine.device": "gpu"},
        {"spec.kvcached.enabled": True, "spec.engine.device": "cpu"},
    )
    seed = "spec.engine.kv.hashSeed"
    yield Example(f"{seed}: hash seed in range", {seed: "4294967295"}, {seed: "4294967296"})
    rdma = "spec.transfer.rdma"
    hca, claim = {"resource": "rdma/hca"}, {"claimTemplate": "nic"}
    yield Example(f"{rdma}: required has a device", {rdma: {"mode": "required", **claim}}, {rdma: {"mode": "required"}})
    yield Example(f"{rdma}: disabled has no device", {rdma: {"mode": "disabled"}}, {rdma: {"mode": "disabled", **hca}})
    yield Example(f"{rdma}: one kind of device", {rdma: hca}, {rdma: {**hca, **claim}})
    weights = "spec.cache.connectors"
    one = {"name": "NixlConnector", "weight": 1}
    yield Example(f"{weights}: names unique", {weights: [one]}, {weights: [one, {**one, "weight": 2}]})
    router = "spec.router"
    of_router: tuple[dict[str, Any], ...] = (
        {"image": "a/b:c"},
        {"apiKeySecretRef": "key"},
        {"gateway": {"inferencePool": True}},
    )
    for setting in of_router:
        (field,) = setting
        for kind in ("external", "none"):
            yield Example(f"{router}: {field} needs a router", {router: setting}, {router: {"type": kind, **setting}})
    gateway = f"{router}.gateway"
    yield Example(f"{gateway}: route has a parent", {gateway: {"parentRefs": [{"name": "a"}]}}, {gateway: {}})
    yield Example(f"{gateway}: route has a parent", {gateway: {"inferencePool": True}}, {gateway: {"parentRefs": []}})
    rollout = "spec.rollout"
    yield Example(
        f"{rollout}: room to move", {rollout: {"maxSurge": 0, "maxUnavailable": 1}}, {rollout: {"maxSurge": 0}}
    )
    yield Example(
        f"{rollout}: room to move",
        {rollout: {"maxSurge": 0, "maxUnavailable": 0, "strategy": "Recreate"}},
        {rollout: {"maxSurge": 0, "maxUnavailable": 0, "strategy": "Paired"}},
    )
    scheduling = "spec.scheduling"
    yield Example(
        f"{scheduling}: queue needs a gang", {scheduling: {"gang": "auto", "queue": "a"}}, {scheduling: {"queue": "a"}}
    )


EXAMPLES: tuple[Example, ...] = (
    *_rest(),
    *_model(),
    *_roles(),
    *_second_tier(),
    *_durations_and_sizes(),
    *_arguments(),
    *_environment(),
)
