"""A sizing as a ``KVServing``: the user's object, or a new one, with the numbers put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..api.faults import Fault, InvalidSpec
from ..api.load import load
from ..api.types import quoted
from ..api.v1alpha1 import API_VERSION, KIND, KVServing, Parallelism, RoleName, StatedFacts
from ..connectors import l2_type
from ..engines import arguments, catalog
from ..memory import host_memory
from ..model_facts import MOST, ModelFacts, settings
from ..plan import check_engine, check_limits
from ..plan.check_limits import CONTEXT, SEQUENCES, SHARE, Limit
from . import counted, devices
from .demand import MEMORY_SHARE, Limits
from .figures import Line
from .size import Sizing

_ROLES: tuple[RoleName, ...] = ("prefill", "decode")
_LONGEST = CONTEXT.flag
_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_GIVES_WAY = "gives way to replicas and parallelism.tensor of the sizing"
_OURS = ("valkey", "filesystem", "none")


def limits(serving: KVServing, role: RoleName) -> Limits:
    """What the object's own arguments tell the engines of ``role``; raises ``InvalidSpec`` for what is no number."""
    share, sequences = _value(serving, role, SHARE), _value(serving, role, SEQUENCES)
    return Limits(float(share or MEMORY_SHARE), None if sequences is None else int(sequences))


def longest(serving: KVServing) -> int | None:
    """The longest context that the object's arguments allow in both roles, where they say."""
    found = [value for role in _ROLES if (value := _value(serving, role, CONTEXT)) is not None]
    return int(min(found)) if found else None


def accepted(serving: KVServing, facts: ModelFacts, config: Mapping[str, Any] | None) -> int | None:
    """The longest context that vLLM accepts for the object's model, where its ``config`` or ``facts`` tell.

    A length that the object states goes before that of the configuration.
    """
    stated = serving.spec.model.facts is not None and serving.spec.model.facts.max_length is not None
    scaled = None if config is None or stated else counted.longest(settings(config))
    return scaled or facts.max_length


def within(serving: KVServing, most: int | None, option: bool) -> None:
    """Raise ``InvalidSpec`` where a role is told a longer context than the ``most`` that vLLM accepts for the model.

    ``option`` tells that it was told by ``--max-model-len``. Nothing is said where the model's own settings are
    overridden, or vLLM is told to accept it.
    """
    told = {
        role: length
        for role in _ROLES
        if (written := _written(serving, role, CONTEXT)) is not None and (length := CONTEXT.read(written)) is not None
    }
    if most is None or not told or max(told.values()) <= most or _overridden(serving):
        return
    role = max(told, key=lambda role: told[role])
    value, model = f"{told[role]:,.0f}", serving.spec.model.uri
    message = (
        f"{value} is above {most:,}, the longest context of {model}, and vLLM does not start so: lower it, or scale "
        "the positions of the model by --hf-overrides in spec.engine.args"
    )
    fault = Fault(_LONGEST, message, value)
    if not option:
        fault = Fault(_written_at(serving, role, _LONGEST), f"{_LONGEST} {message}", value)
    raise InvalidSpec([fault])


def _overridden(serving: KVServing) -> bool:
    spec, flags = serving.spec, ("--hf-overrides", "--rope-scaling")
    sections = [section for section in (spec.engine, spec.prefill, spec.decode) if section is not None]
    return any(entry.name == _ALLOWED for section in sections for entry in section.env) or any(
        arguments.find(section.args, flag) for section in sections for flag in flags
    )


def _args(serving: KVServing, role: RoleName) -> tuple[str, ...]:
    section = serving.spec.prefill if role == "prefill" else serving.spec.decode
    return (*serving.spec.engine.args, *(section.args if section is not None else ()))


def _written_at(serving: KVServing, role: RoleName, flag: str) -> str:
    """The field whose argument wins for ``role``."""
    section = serving.spec.prefill if role == "prefill" else serving.spec.decode
    own = section is not None and arguments.find(section.args, flag)
    return f"spec.{role}.args" if own else "spec.engine.args"


def _written(serving: KVServing, role: RoleName, limit: Limit) -> str | None:
    """What the arguments tell the engines of ``role``; raises ``InvalidSpec`` where any of them is refused."""
    if wrong := tuple(check_limits.faults(serving.spec)):
        raise InvalidSpec(wrong)
    return arguments.last_value(_args(serving, role), limit.flag)


def _value(serving: KVServing, role: RoleName, limit: Limit) -> float | None:
    written = _written(serving, role, limit)
    if written is None:
        return None
    if check_limits.is_automatic(limit, written):
        message = (
            f"{limit.flag} {quoted(written)} depends on what fits, which is what is sized: write a number of tokens, "
            f"such as {limit.example} or 32K, or remove the flag"
        )
        raise InvalidSpec([Fault(_written_at(serving, role, limit.flag), message, written)])
    return limit.read(written)


@dataclass(frozen=True)
class Changes:
    """What options say in place of an object's own fields; None leaves them."""

    name: str | None = None
    facts: StatedFacts | None = None
    kv_dtype: str | None = None
    max_model_len: int | None = None


def new(uri: str, name: str) -> KVServing:
    """An object for the model at ``uri``, to be sized; raises ``InvalidSpec`` where it can have no such model."""
    spec: dict[str, Any] = {"model": {"uri": uri}, "prefill": {}, "decode": {}}
    return load({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}, strict=True)


def changed(serving: KVServing, changes: Changes) -> KVServing:
    """The object with what options say in place of its own; raises ``InvalidSpec`` for CPUs and for what is refused."""
    if serving.spec.engine.device == "cpu":
        message = f"cpu: {devices.GPUS_ALONE}: remove the field to size it for GPUs; try out engines on CPUs"
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
        if not 0 < changes.max_model_len <= MOST:
            message = f"{changes.max_model_len:,} is no length of a context: give 1 to {MOST:,} tokens"
            raise InvalidSpec([Fault(_LONGEST, message, f"{changes.max_model_len}")])
        kept = arguments.without(serving.spec.engine.args, _LONGEST)
        spec.setdefault("engine", {})["args"] = [*kept, f"{_LONGEST}={changes.max_model_len}"]
        for role in _ROLES:
            # A role's own would win.
            if written := spec.get(role, {}).get("args"):
                spec[role]["args"] = list(arguments.without(written, _LONGEST))
    made = load({"apiVersion": serving.api_version, "kind": serving.kind, **body}, strict=True)
    _check_kv(made, "spec.engine.kv.dtype" if changes.kv_dtype is None else "--kv-dtype")
    return made


def _check_kv(serving: KVServing, path: str) -> None:
    """Refuse a type of KV before the model is asked for its size in it."""
    engine = serving.spec.engine
    enabled = serving.spec.kvcached.enabled
    build = catalog.resolve(version=engine.version, image=engine.image, device=engine.device, kvcached=enabled)
    if wrong := tuple(check_engine.kv_type(engine.kv, build)):
        raise InvalidSpec([replace(fault, path=path) for fault in wrong])


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
                notices.append(f"spec.{role}.{field} {_GIVES_WAY}")
        section["replicas"] = size.replicas
        ranks = Parallelism.model_validate(section.pop("parallelism", None) or {})
        for field in ("pipeline", "data", "expert"):
            if getattr(ranks, field) != getattr(Parallelism(), field):
                notices.append(f"spec.{role}.parallelism.{field} {_GIVES_WAY}")
        if size.tensor > 1:
            section["parallelism"] = {"tensor": size.tensor}
        for amounts in section.get("resources", {}).values():
            for resource in amounts:
                if resource.endswith("/gpu"):
                    amounts[resource] = str(size.tensor)
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
    for role in _ROLES:
        need = host_memory(spec, role)
        how, _, total = need.explain().rpartition(" = ")
        found.append(Line(f"{role}: host memory of a replica", need.total, total, how))
    return tuple(found)
