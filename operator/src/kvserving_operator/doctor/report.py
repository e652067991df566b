"""What the command prints: explanations and findings as text for people, or as one JSON document."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..amounts import size
from ..control.permissions import CHILDREN, PODS
from ..listing import count
from ..routers import ROUTERS
from .checks.placement import amounts, usable
from .explain import Injected
from .explanations import Explanation
from .explanations_service import EXPLANATIONS
from .facts import ClusterFacts, ObjectFacts, ServiceFacts
from .facts_machine import Device, Environment, MachineFacts
from .findings import Finding, Severity, shown

_KINDS = {"flag": "flags", "env": "variables", "connector": "connectors"}
_WIDTH = 110
_LOST = "Lost"
_RUNS = frozenset({"Loading", "NotReady", "Ready", "Stopping"})
"""Phases of a process of this machine that is there."""
_CHILDREN = frozenset(resource.kind for resource in CHILDREN)


def document(
    subject: Mapping[str, Any], found: Sequence[Finding] | None, settings: Sequence[Injected] | None = None
) -> dict[str, Any]:
    """Everything as plain JSON data: what was looked at, the findings, and the settings with their reasons.

    What is ``None`` was not asked for, and has no member.
    """
    said: dict[str, Any] = _masked(subject)
    if found is not None:
        said["summary"] = {severity.value: sum(f.severity is severity for f in found) for severity in Severity}
        said["findings"] = [finding.to_json() for finding in found]
    if settings is not None:
        said["settings"] = [setting.to_json() for setting in settings]
    return said


def _masked(said: Any) -> Any:
    """``said`` with every text fit to be shown."""
    if isinstance(said, Mapping):
        return {shown(str(key)): _masked(value) for key, value in said.items()}
    if isinstance(said, list):
        return [_masked(value) for value in said]
    return shown(said) if isinstance(said, str) else said


def explained(settings: Sequence[Injected]) -> Iterator[str]:
    """Lines about each setting: what both roles share once, then what each has by itself."""
    by_roles: dict[tuple[str, ...], list[Injected]] = {}
    for setting in settings:
        same = [other for other in settings if _value(other) == _value(setting)]
        roles = tuple(dict.fromkeys(other.role for other in same))
        if setting.role == roles[0]:
            by_roles.setdefault(roles, []).append(setting)
    for roles, group in sorted(by_roles.items(), key=lambda entry: -len(entry[0])):
        workloads = dict.fromkeys(s.workload for s in settings if s.role in roles)
        yield f"{' and '.join(roles)}  ({', '.join(workloads)})"
        for kind, title in _KINDS.items():
            ours = [setting for setting in group if setting.kind == kind]
            if ours:
                yield f"  {title}"
            for owner, entries in groupby(ours, key=lambda setting: setting.owner):
                if owner:
                    yield f"    {owner}"
                indent = "      " if owner else "    "
                for reason, alike in groupby(entries, key=lambda setting: EXPLANATIONS[setting.key]):
                    yield from (f"{indent}{_shown(setting)}" for setting in alike)
                    yield from _wrapped(reason, roles, f"{indent}    ")
        yield ""


def _value(setting: Injected) -> tuple[str, ...]:
    component, kind, name = setting.key
    return component, kind, name, setting.value, setting.owner


def _shown(setting: Injected) -> str:
    return setting.name if setting.value == "" else f"{setting.name}={shown(setting.value)}"


def _wrapped(reason: Explanation, roles: Sequence[str], indent: str) -> list[str]:
    field = reason.field.format(role=roles[0] if len(roles) == 1 else "<role>")
    said = f"{reason.why} [{field}]" if field else reason.why
    return textwrap.wrap(said, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def told(found: Sequence[Finding]) -> Iterator[str]:
    """Lines about each finding, the worst first, and a sum."""
    for finding in found:
        yield f"{finding.severity.upper():<8} {shown(finding.where)}  ({finding.check})"
        for word, text in (("", finding.what), ("why: ", finding.why), ("fix: ", finding.brief or finding.fix)):
            yield from textwrap.wrap(
                word + shown(text),
                _WIDTH,
                initial_indent="    ",
                subsequent_indent="    ",
                break_on_hyphens=False,
                break_long_words=False,
            )
    counts = [(severity, sum(f.severity is severity for f in found)) for severity in Severity]
    words = [f"{count} {severity.value}{'s' if count > 1 and severity is not Severity.INFO else ''}"
             for severity, count in counts if count]  # fmt: skip
    yield ", ".join(words) if words else "nothing found"


def object_lines(facts: ObjectFacts) -> Iterator[str]:
    """What the object is."""
    head = f"{facts.name}  namespace {facts.namespace}" if facts.name else "no object was read"
    if facts.plan is not None:
        profile = facts.plan.profile
        head += f"  revision {facts.plan.revision[:8]}  vLLM {profile.engine_version} ({shown(profile.engine_image)})"
    yield head
    if facts.live is not None:
        read = len(facts.live.engines)
        engines = facts.live.pods_of("prefill", "decode")
        children, pods = len(facts.live.children), PODS.kind not in facts.live.hidden
        told = f"{children} children" + (" that may be read" if facts.live.hidden & _CHILDREN else "")
        yield f"  {told}, {f'{len(engines)} engines, counters of {read}' if pods else 'pods may not be read'}"


def object_subject(facts: ObjectFacts, site: str) -> dict[str, Any]:
    """The same as JSON data; ``site`` is the one that it was looked at for, as ``--site`` names it."""
    name, namespace = facts.name or None, facts.namespace or None
    said: dict[str, Any] = {
        "object": {"name": name, "namespace": namespace, "site": site, "live": facts.live is not None}
    }
    if facts.plan is not None:
        said["object"] |= {
            "revision": facts.plan.revision,
            "engine": {
                "version": facts.plan.profile.engine_version,
                "image": shown(facts.plan.profile.engine_image),
            },
        }
    return said


def cluster_lines(facts: ClusterFacts) -> Iterator[str]:
    """What the cluster has."""
    said = cluster_subject(facts)["cluster"]
    yield shown(f"{said['server']}  Kubernetes {said['version'] or 'unknown'}")
    if facts.operators is not None:
        yield shown(f"  operators    {', '.join(said['operators']) or 'none'}")
    if facts.nodes is not None:
        yield f"  nodes        {said['readyNodes']} of {len(facts.nodes)} ready"
        devices = ", ".join(f"{amount} {name}" for name, amount in said["devices"].items())
        yield shown(f"  devices      {devices or 'none'}")
    if facts.kinds is not None:
        kinds = ", ".join(sorted(kind for _, kind in facts.kinds))
        yield from textwrap.wrap(f"  kinds        {kinds or 'none'}", _WIDTH, subsequent_indent=" " * 15)


def cluster_subject(facts: ClusterFacts) -> dict[str, Any]:
    """The same as JSON data; ``None`` is what may not be read."""
    devices: dict[str, int] = {}
    ready = [node for node in facts.nodes or () if usable(node)]
    for node in ready:
        for name, amount in amounts((node.get("status") or {}).get("allocatable") or {}).items():
            if "/" in name:
                devices[name] = devices.get(name, 0) + int(amount)
    operators, nodes, kinds = facts.operators, facts.nodes is not None, facts.kinds
    return {
        "cluster": {
            "server": facts.server,
            "version": facts.version or None,
            "operators": None if operators is None else [_named(body) for body in operators],
            "readyNodes": len(ready) if nodes else None,
            "devices": dict(sorted(devices.items())) if nodes else None,
            "kinds": None if kinds is None else sorted(f"{version}/{kind}" for version, kind in kinds),
        }
    }


def _named(body: Mapping[str, Any]) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def service_lines(facts: ServiceFacts) -> Iterator[str]:
    """What the service is."""
    version = facts.version or "unknown"
    yield f"{facts.name}  on this machine, {shown(facts.phase)}  revision {facts.revision[:8]}  vLLM {version}"
    yield f"  {_processes(facts)}"
    if facts.caveat:
        yield f"  {shown(facts.caveat)}:"
    if facts.proof:
        yield f"  {'  ' * bool(facts.caveat)}{shown(facts.proof)}"


def _processes(facts: ServiceFacts) -> str:
    """How many processes run, and of how many engines the counters were read."""
    there, runs = len(facts.pods), sum(pod.phase in _RUNS for pod in facts.pods)
    if facts.phase == _LOST:
        return f"{there} processes without a supervisor"
    if not runs:
        return f"none of its {there} processes runs"
    some = f"{there} processes" if runs == there else f"{runs} of {there} processes run"
    return f"{some}, counters of {count(len(facts.engines), 'engine')}"


def service_subject(facts: ServiceFacts) -> dict[str, Any]:
    """The same as JSON data."""
    engine = {"version": facts.version}
    return {"service": {"name": facts.name, "phase": facts.phase, "revision": facts.revision, "engine": engine}}


def machine_lines(facts: MachineFacts) -> Iterator[str]:
    """What this machine has."""
    yield f"this machine  {facts.system}, {facts.cpus} cores, Python {facts.python}"
    memory = "unknown" if facts.memory is None else size(facts.memory)
    shm = "none" if facts.shm_size is None else f"{size(facts.shm_free or 0)} of {size(facts.shm_size)} free"
    yield f"  memory       {memory} available; shared memory {shm}"
    gpus = ", ".join(map(_gpu, facts.devices))
    yield shown(f"  GPUs         {gpus or facts.device_problem or _no_gpus(facts)}")
    if facts.driver.cuda is not None:
        yield f"  driver       CUDA {_cuda(facts)}"
    ports = ", ".join(f"{link.name} {link.state} {link.layer} {link.rate}".rstrip() for link in facts.links)
    yield shown(f"  RDMA         {ports or 'none'}")
    yield shown(f"  engines      {_environment(facts.engine)}")
    yield shown(f"  routers      {_environment(facts.router)}")
    yield shown(f"  store        {facts.store or 'none'}")
    for address, problem in facts.reach.items():
        yield shown(f"  network      {address} {problem or 'can be reached'}")


def _gpu(device: Device) -> str:
    memory = "memory unknown" if device.memory is None else size(device.memory)
    return f"{device.name} ({memory}, driver {device.driver or 'unknown'})"


def machine_subject(facts: MachineFacts) -> dict[str, Any]:
    """The same as JSON data; ``None`` is what is not there or not told."""
    gpus = [
        {"name": d.name, "memory": d.memory, "free": d.free, "driver": d.driver, "mig": d.mig} for d in facts.devices
    ]
    return {
        "machine": {
            "system": facts.system,
            "python": facts.python,
            "cores": facts.cpus,
            "memory": facts.memory,
            "sharedMemory": {"size": facts.shm_size, "free": facts.shm_free, "leftovers": len(facts.stale)},
            "gpus": gpus if gpus or not facts.device_problem else None,
            "driver": {"loaded": facts.driver.loaded, "cuda": _cuda(facts), "cards": facts.driver.cards},
            "topology": {f"{a}-{b}": word for (a, b), word in facts.topology.paths.items()},
            "services": {"running": list(facts.running), "lost": list(facts.lost), "damaged": list(facts.damaged)},
            "rdma": [{"port": p.name, "state": p.state, "layer": p.layer, "rate": p.rate} for p in facts.links],
            "engines": _versions(facts.engine),
            "routers": _versions(facts.router),
            "store": facts.store,
            "reach": {address: problem or None for address, problem in facts.reach.items()},
        }
    }


def _cuda(facts: MachineFacts) -> str | None:
    found = facts.driver.cuda
    return None if found is None else f"{found[0]}.{found[1]}"


def _no_gpus(facts: MachineFacts) -> str:
    """What is said where no GPU is listed: whether there is one, or a driver, or neither."""
    if facts.driver.loaded:
        return "none listed; a driver is loaded"
    return f"{facts.driver.cards} without a driver" if facts.driver.cards else "none, and no driver"


def _environment(found: Environment) -> str:
    # torch has it from its build, whatever the machine has: a vLLM for CPUs runs with the ordinary build as well.
    names = {"cuda": "torch for CUDA"}
    unused = {"cuda": " (no GPU is used)" if found.device == "cpu" else ""}
    versions = [
        f"{names.get(name, name)} {text}{unused.get(name, '')}"
        for name, text in _versions(found).items()
        if name != "python" and text
    ]
    return f"{found.path}: {', '.join(versions) or 'nothing of ours'}"


def _versions(found: Environment) -> dict[str, Any]:
    vllm = f"{found.vllm} ({found.device})" if found.vllm else None
    stack = found.stack
    return {
        "python": found.path,
        "vllm": vllm,
        "cuda": stack.cuda if found.vllm else None,
        "nixl": found.nixl,
        "connector": stack.connector,
        "kvcached": stack.kvcached,
        **{kind: found.routers.get(kind) for kind in ROUTERS},
    }
