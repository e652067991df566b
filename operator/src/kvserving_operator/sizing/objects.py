"""A sizing as a ``KVServing``: the user's object, or a new one, with the numbers put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..api.faults import Fault, InvalidSpec
from ..api.load import load
from ..api.v1alpha1 import KVServing, RoleName, StatedFacts
from ..connectors import l2_type
from ..engines import arguments
from ..memory import host_memory
from .demand import MEMORY_SHARE, Limits
from .figures import Line
from .size import Sizing

_DEVICES = "nvidia.com/gpu"
_LONGEST = "--max-model-len"
_OURS = ("valkey", "filesystem", "none")


def limits(serving: KVServing, role: RoleName) -> Limits:
    """What the object's own arguments tell the engines of ``role``; raises ``InvalidSpec`` for what is no number."""
    section = serving.spec.prefill if role == "prefill" else serving.spec.decode
    args = (*serving.spec.engine.args, *(section.args if section is not None else ()))
    share, sequences = (_number(args, role, flag) for flag in ("--gpu-memory-utilization", "--max-num-seqs"))
    return Limits(share or MEMORY_SHARE, int(sequences) if sequences else None)


def longest(serving: KVServing) -> int | None:
    """The longest context that the object's arguments allow, where they say."""
    found = _number(serving.spec.engine.args, "decode", _LONGEST)
    return None if found is None else int(found)


def _number(args: tuple[str, ...], role: RoleName, flag: str) -> float | None:
    written = arguments.last_value(args, flag)
    if written is None:
        return None
    try:
        value = float(written)
    except ValueError:
        value = 0.0
    if value <= 0 or (flag == "--gpu-memory-utilization" and value > 1):
        message = f"{flag} {written!r} is no number that can be sized by: correct it, or remove the flag"
        raise InvalidSpec([Fault(f"spec.{role}.args", message, written)])
    return value


@dataclass(frozen=True)
class Changes:
    """What options say in place of an object's own fields; None leaves them."""

    name: str | None = None
    facts: StatedFacts | None = None
    kv_dtype: str | None = None
    max_model_len: int | None = None


def new(uri: str, name: str) -> KVServing:
    """An object for the model at ``uri``, to be sized."""
    spec: dict[str, Any] = {"model": {"uri": uri}, "prefill": {}, "decode": {}}
    return KVServing.model_validate({"metadata": {"name": name}, "spec": spec})


def changed(serving: KVServing, changes: Changes) -> KVServing:
    """The object with what options say in place of its own; raises ``InvalidSpec`` for CPUs and for what is refused."""
    if serving.spec.engine.device == "cpu":
        message = "cpu: speeds are known of GPUs only: remove the field to size it for GPUs; try out engines on CPUs"
        raise InvalidSpec([Fault("spec.engine.device", message, "cpu")])
    body = serving.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec = body["spec"]
    if changes.name is not None:
        body["metadata"]["name"] = changes.name
    if changes.facts is not None:
        stated = changes.facts.model_dump(by_alias=True, exclude_none=True)
        spec["model"]["facts"] = spec["model"].get("facts", {}) | stated
    if changes.kv_dtype is not None:
        spec.setdefault("engine", {}).setdefault("kv", {})["dtype"] = changes.kv_dtype
    if changes.max_model_len is not None:
        kept = arguments.without(serving.spec.engine.args, _LONGEST)
        spec.setdefault("engine", {})["args"] = [*kept, f"{_LONGEST}={changes.max_model_len}"]
    return load({"apiVersion": serving.api_version, "kind": serving.kind, **body}, strict=True)


def sized(serving: KVServing, sizing: Sizing) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The object with the sizing in it, as it is written to a file, and what had to give way for it."""
    body = serving.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec, notices = body["spec"], []
    if serving.spec.prefill is None:
        notices.append("the object has no spec.prefill: the sizing adds it")
    for role, size in (("prefill", sizing.prefill), ("decode", sizing.decode)):
        section = spec.setdefault(role, {})
        for field in ("autoscaling", "nodes"):
            if section.pop(field, None) not in (None, 1):
                notices.append(f"spec.{role}.{field} gives way to replicas and parallelism.tensor of the sizing")
        section["replicas"] = size.replicas
        section.pop("parallelism", None)
        if size.tensor > 1:
            section["parallelism"] = {"tensor": size.tensor}
        for amounts in section.get("resources", {}).values():
            if _DEVICES in amounts:
                amounts[_DEVICES] = str(size.tensor)
    _tiers(serving, spec, sizing, notices)
    return {"apiVersion": serving.api_version, "kind": serving.kind, **body}, tuple(notices)


def _tiers(serving: KVServing, spec: dict[str, Any], sizing: Sizing, notices: list[str]) -> None:
    cache = spec.setdefault("cache", {})
    if sizing.tiers.l1:
        cache.setdefault("l1", {})["size"] = f"{sizing.tiers.l1}Gi"
    elif sizing.tiers.l1 == 0 and cache.pop("l1", None) is not None:
        notices.append("spec.cache.l1 is left out: --l1-horizon is 0")
    kind = l2_type(serving.spec.cache.l2)
    if sizing.tiers.l2 is None:
        pass
    elif kind not in _OURS:
        notices.append(f"spec.cache.l2 stays as it is: the operator does not size a store of type {kind}")
    elif sizing.tiers.l2:
        l2 = cache.setdefault("l2", {})
        if kind == "none":
            l2.pop("type", None)
        l2["size"] = f"{sizing.tiers.l2}Gi"
        if sizing.tiers.shards > 1 and kind != "filesystem":
            l2["replicas"] = sizing.tiers.shards
    elif cache.pop("l2", None) is not None:
        notices.append("spec.cache.l2 is left out: --l2-horizon is 0")
    if not cache:
        del spec["cache"]


def host_lines(body: Mapping[str, Any]) -> tuple[Line, ...]:
    """Host memory of one pod of each role, and of its ``/dev/shm``."""
    spec = KVServing.model_validate(body).spec
    found: list[Line] = []
    roles: tuple[RoleName, ...] = ("prefill", "decode")
    for role in roles:
        need = host_memory(spec, role)
        how, _, total = need.explain().rpartition(" = ")
        found.append(Line(f"{role}: host memory of a replica", need.total, total, how))
    return tuple(found)
