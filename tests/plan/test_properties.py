"""What holds for any object: accepted objects have a plan, names are labels, equal input gives equal bytes."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.plan.fields import VALUES, leaves
from tests.plan.support import LOCAL, edited

from kvserving_operator.api.faults import Fault
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.plan import workloads
from kvserving_operator.plan.names import base_name
from kvserving_operator.plan.planning import check, plan
from kvserving_operator.plan.types import Plan

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,38}[a-z0-9])?", fullmatch=True)
SITES = st.sampled_from([LOCAL, None])
RELAXED = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec with some fields set, each to one of its values; often inconsistent as a whole."""
    spec: dict[str, Any] = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "decode": {}}
    if draw(st.booleans()):
        spec["prefill"] = {}
    for path in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=8, unique=True)):
        value = draw(st.sampled_from(VALUES[path]))
        try:
            spec = edited(spec, path, value)
        except AttributeError:
            continue
    return spec


def parsed(name: str, spec: dict[str, Any]) -> KVServing | None:
    try:
        return KVServing.model_validate({"metadata": {"name": name}, "spec": spec})
    except ValidationError:
        return None


def written(made: Plan) -> str:
    """The plan's objects as text; refuses what JSON cannot say."""
    return json.dumps([dict(o) for o in made.objects], allow_nan=False)


def test_values_are_known_for_every_field() -> None:
    assert set(leaves()) <= set(VALUES)


@RELAXED
@given(NAMES, specs(), SITES)
def test_an_accepted_object_has_a_plan(name: str, spec: dict[str, Any], site: Any) -> None:
    serving = parsed(name, spec)
    if serving is None:
        return
    where = {"site": site} if site is not None else {}
    found = check(serving, **where)
    assert all(isinstance(fault, Fault) and fault.path.startswith("spec.") for fault in found)
    if found:
        return
    made = plan(serving, **where)
    assert written(made) == written(plan(serving, **where))
    identities = [(o["kind"], o["metadata"]["name"]) for o in made.objects]
    assert len(set(identities)) == len(identities)
    for o in made.objects:
        assert LABEL.fullmatch(o["metadata"]["name"])
        assert len(o["metadata"]["name"]) <= 63
        assert o["metadata"]["labels"]["kvserving.dev/name"] == name
        assert all(len(value) <= 63 for value in o["metadata"]["labels"].values())
    for o in made.objects:
        if o["kind"] not in ("Deployment", "StatefulSet"):
            continue
        selector = o["spec"]["selector"]["matchLabels"]
        pod = o["spec"]["template"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
        assert len(set(volumes)) == len(volumes)
        for container in pod["spec"]["containers"]:
            env = [variable["name"] for variable in container.get("env", ())]
            assert len(set(env)) == len(env)
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(set(paths)) == len(paths)


@RELAXED
@given(NAMES, specs(), specs())
def test_engines_of_one_object_always_agree(name: str, spec: dict[str, Any], other: dict[str, Any]) -> None:
    serving = parsed(name, {**spec, "prefill": {**spec.get("prefill", {}), **other.get("decode", {})}})
    if serving is None or check(serving):
        return
    made = plan(serving)
    roles = {
        o["metadata"]["labels"]["kvserving.dev/role"]: workloads.pod_template(o)["spec"]["containers"][0]
        for o in made.objects
        if o["kind"] in workloads.ENGINES
    }
    for name in ("PYTHONHASHSEED", "UCX_TLS", "VLLM_SSM_CONV_STATE_LAYOUT"):
        values = [[v for v in roles[role]["env"] if v["name"] == name] for role in ("prefill", "decode")]
        assert values[0] == values[1]
    for flag in ("--model=", "--block-size=", "--kv-cache-dtype=", "--prefix-caching-hash-algo=", "--port="):
        values = [[arg for arg in roles[role]["args"] if arg.startswith(flag)] for role in ("prefill", "decode")]
        assert values[0] == values[1]


@given(NAMES)
def test_the_base_of_names_is_a_label_with_room_for_the_rest(name: str) -> None:
    base = base_name(name)
    assert LABEL.fullmatch(base)
    assert len(base) <= 40
    assert base == base_name(name)


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_two_objects_never_share_a_base(names: list[str]) -> None:
    assert base_name(names[0]) != base_name(names[1])


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "metadata",
                        "spec",
                        "containers",
                        "name",
                        "engine",
                        "env",
                        "volumes",
                        "volumeMounts",
                        "mountPath",
                        "emptyDir",
                        "labels",
                    ]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_template_is_planned_or_refused(template: Any) -> None:
    spec = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "prefill": {}, "decode": {"template": template}}
    serving = parsed("qwen", spec)
    if serving is not None and not check(serving):
        plan(serving)
