"""What the pods of one object show: why they do not run, and settings that must be equal or there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...amounts import size
from ...api.types import ResourceQuantity
from ...control import asks
from ...control.pods import NEVER_RAN, PodState, containers, ended, last_words, pod_state
from ...control.refused_args import placed
from ...engines import arguments
from ...listing import times
from ...memory import host_memory
from ...plan import labels, template
from ...plan.workloads import pod_template
from ..explain import main_container, transfer_config, workloads
from ..facts import Body, Live, ObjectFacts, role_of
from ..findings import Finding, error, info, warning
from . import claims, images, restarts, room
from .operators import IMAGE_FAULTS

_SHM = "/dev/shm"  # noqa: S108 - vLLM's own path
_SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_HOST"
_NOWHERE = ("0.0.0.0", "::", "localhost", "127.")  # noqa: S104 - addresses that are refused
_OUT_OF_MEMORY = "OOMKilled"
_LIMITS = {
    "router": "raise spec.router.replicas: each router then has fewer of the requests",
    "store": "lower spec.cache.l2.maxUsage, or raise spec.cache.l2.size, which the limit follows",
}
"""The way out of too little memory of what is no engine."""
_PULL = "`kubectl describe pod` has the registry's answer: "
_OF_IMAGE = re.compile(r"(?:pod (\S+): )?(?:\w+ \()?container (\S+): image ")
"""A container whose image is told, and its pod where it is named."""
_WAITING = {
    "CrashLoopBackOff": "`kubectl logs --previous` says why it ends; the last lines are vLLM's",
    "ImagePullBackOff": _PULL + "check the image's name and the pull secret",
    "ErrImagePull": _PULL + "check the image's name and the pull secret",
    "InvalidImageName": "check the image's name",
    "CreateContainerConfigError": "a Secret or ConfigMap, or a key of it, is missing: `kubectl describe pod` names it",
    "CreateContainerError": "`kubectl describe pod` has the runtime's error",
    "RunContainerError": "`kubectl describe pod` has the runtime's error",
}

_NEVER_RAN = "the container never ran, and has no log: the message is the runtime's; look at image and command"


def findings(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Findings about the pods of one object."""
    yield from _absent(facts, live)
    workers = [labels.worker(role) for role in ("prefill", "decode")]
    for pod in live.pods_of("prefill", "decode", "router", "store", *workers):
        yield from _running(facts, live, pod)
    engines = live.pods_of("prefill", "decode")
    for pod in engines:
        yield from _engine(facts, pod)
    yield from _alike(engines + live.pods_of(*workers))


def _absent(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    if "Pod" in live.hidden:
        return
    planned = workloads(facts.plan.objects) if facts.plan is not None else []
    for manifest in planned:
        role = role_of(manifest)
        if manifest["spec"].get("replicas", 1) and live.status and not live.pods_of(role):
            yield error(
                "no-pods",
                f"{manifest['kind']} {manifest['metadata']['name']}",
                f"no {role} pod exists",
                why="requests need every role",
                fix="the workload's events (`kubectl describe`) say what refuses its pods",
            )


def _running(facts: ObjectFacts, live: Live, pod: Body) -> Iterator[Finding]:
    state = pod_state(pod)
    if state.unschedulable and not claims.told(live, state):
        ways = [claims.way_out()] if claims.held(state) else []
        if not ways or asks.lacking(state.unschedulable):
            ways.append(room.way_out(facts, role_of(pod), state.unschedulable))
        yield error(
            "unschedulable",
            f"pod {state.name}",
            state.unschedulable,
            why="it gets no node",
            fix="; ".join(ways),
        )
    if state.failing:
        yield error(
            "pod-failing",
            f"pod {state.name}",
            placed(_spec(facts), role_of(pod), f"{state.failing} {state.failing_message}".strip()),
            why="it does not serve",
            fix=_way_out(facts, state, pod),
        )
    for container in containers(pod.get("status") or {}):
        last = ended(container)
        if last.get("reason") == _OUT_OF_MEMORY:
            yield _out_of_memory(facts, pod, str(container.get("name")))
        elif (code := last.get("exitCode")) is not None and not state.failing:
            yield warning(
                "restarted",
                f"pod {state.name}",
                f"container {container.get('name')} ended with exit code {code}, restarted "
                f"{times(container.get('restartCount') or 0)}",
                why=restarts.cost(role_of(pod)),
                fix=f"`kubectl logs {state.name} -c {container.get('name')} --previous` says why",
            )


def _spec(facts: ObjectFacts) -> Body:
    """The spec as the cluster has it; empty where there is none."""
    found: Body = (facts.live.body.get("spec") if facts.live is not None else None) or {}
    return found


def _way_out(facts: ObjectFacts, state: PodState, pod: Body) -> str:
    if any(reason in state.failing_message for reason in NEVER_RAN):
        return _NEVER_RAN
    if any(last_words(ended(container)) for container in containers(pod.get("status") or {})):
        return f"as the sentence says; `kubectl logs {state.name} --previous` has all of it"
    found = _image(facts, state.failing, state.failing_message, role_of(pod))
    found = found or _WAITING.get(state.failing, "`kubectl describe pod` says why")
    named = found.replace("`kubectl describe pod`", f"`kubectl describe pod {state.name}`")
    return named.replace("`kubectl logs --previous`", f"`kubectl logs {state.name} --previous`")


def _image(facts: ObjectFacts, reason: str, message: str, role: str = "") -> str:
    """The way out of an image that ``message`` tells of; empty where it tells of none."""
    told = _OF_IMAGE.search(message)
    if told is None or reason not in IMAGE_FAULTS:
        return ""
    role = role or images.role_of_pod(facts, told[1] or "")
    if not role:
        return ""
    if reason == "InvalidImageName":
        return f"check {images.source(facts, role, told[2])}"
    return _PULL + images.pull(facts, role, told[2])


def way_out(facts: ObjectFacts, message: str) -> str:
    """The way out of what a condition's ``message`` says of a failing pod; empty where it names no known reason."""
    if any(reason in message for reason in NEVER_RAN):
        return _NEVER_RAN
    if found := next(
        filter(None, (_image(facts, reason, message) for reason in IMAGE_FAULTS if reason in message)), ""
    ):
        return found
    return next((fix for reason, fix in _WAITING.items() if reason in message), "")


def _out_of_memory(facts: ObjectFacts, pod: Body, container: str) -> Finding:
    role = role_of(pod)
    limit = (main_container(pod.get("spec") or {}).get("resources") or {}).get("limits", {}).get("memory", "none")
    name = f"pod {pod['metadata']['name']}"
    what = f"container {container} was killed for memory; its limit is {limit}"
    if role == "prefill" or (role == "decode" and facts.serving is not None):
        assert facts.serving is not None
        need = host_memory(facts.serving.spec, "prefill" if role == "prefill" else "decode")
        what += f"; the plan counts on {need.explain()}"
    return error("out-of-memory", name, what, why=_costs_memory(role), fix=_room(role))


def _costs_memory(role: str) -> str:
    return restarts.cost(role) + ("" if role in _LIMITS else "; tiers in /dev/shm count for the limit")


def _room(role: str) -> str:
    """The way out of too little memory: which fields decide how much a pod of the role may take, and takes."""
    of_engine = role.removesuffix(labels.worker(""))
    engine = f"set or raise spec.{of_engine}.resources.limits.memory, or make spec.cache.l1.size smaller"
    return _LIMITS.get(role, engine)


def _engine(facts: ObjectFacts, pod: Body) -> Iterator[Finding]:
    where, role, spec = f"pod {pod['metadata']['name']}", role_of(pod), pod.get("spec") or {}
    container = main_container(spec)
    args = [str(arg) for arg in container.get("args") or ()]
    serving = facts.serving
    if serving is None:
        return
    needs = serving.spec.prefill is not None
    if needs and not transfer_config(args):
        yield error(
            "connector-missing",
            where,
            "its engine has no --kv-transfer-config",
            why="every answer is right, and each prompt is computed by prefill and again by decode",
            fix="remove what takes the flag away (a webhook, a hand-made change); the operator sets it",
        )
    for flag in ("--kv-offloading-size", "--kv-offloading-backend"):
        if arguments.find(args, flag):
            yield error(
                "connector-replaced",
                where,
                f"{flag} is set",
                why="vLLM then puts its own connector in place of ours, and transfers end without a word",
                fix="remove the flag; spec.cache.l1 is the tier in host memory",
            )
    if needs:
        yield from _side_channel(where, container)
    yield from _shm(facts, where, role, spec)
    if spec.get("enableServiceLinks") is not False:
        yield warning(
            "service-links",
            where,
            "enableServiceLinks is on",
            why="a Service called vllm sets VLLM_PORT in the engine, which then ends",
            fix="remove what changes the pod: the operator switches them off",
        )
    wanted = _planned_pod(facts, role).get("terminationGracePeriodSeconds")
    grace = spec.get("terminationGracePeriodSeconds")
    if wanted is not None and grace is not None and int(grace) < int(wanted):
        yield warning(
            "grace-short",
            where,
            f"terminationGracePeriodSeconds is {grace}, the drain may take {wanted}",
            why="running requests and KV that decode has not fetched are lost when the pod goes",
            fix="remove what changes the pod: the operator computes it from drainTimeout and lease",
        )


def _side_channel(where: str, container: Mapping[str, Any]) -> Iterator[Finding]:
    found = [e for e in template.listed(container, "env") if e.get("name") == _SIDE_CHANNEL]
    value = str(found[-1].get("value", "")) if found else ""
    if not found or (value and value.startswith(_NOWHERE)):
        yield error(
            "side-channel-address",
            where,
            f"{_SIDE_CHANNEL} is {value or 'not set'}",
            why="the address is told to peers as it is: decode dials itself, and ends or fails each request",
            fix="it must come from status.podIP, as the operator sets it: remove what changes the pod",
        )


def _shm(facts: ObjectFacts, where: str, role: str, spec: Mapping[str, Any]) -> Iterator[Finding]:
    assert facts.serving is not None
    need = host_memory(facts.serving.spec, "prefill" if role == "prefill" else "decode")
    mount = next((m for m in template.listed(main_container(spec), "volumeMounts") if m.get("mountPath") == _SHM), {})
    volume = next((v for v in template.listed(spec, "volumes") if v.get("name") == mount.get("name")), {})
    memory = template.section(volume, "emptyDir")
    if "hostPath" in volume:
        return
    if memory.get("medium") != "Memory":
        yield error(
            "shm-missing",
            where,
            "no volume of medium Memory is mounted at /dev/shm",
            why=f"it has the runtime's 64 MiB, and the engine needs {size(need.shm)}",
            fix="leave /dev/shm to the operator",
        )
        return
    limit = amount(memory.get("sizeLimit"))
    if limit is not None and limit < need.shm:
        yield error(
            "shm-small",
            where,
            f"the volume at {_SHM} holds {memory.get('sizeLimit')}, and the engine needs {size(need.shm)}",
            why="L1 lies there: the engine ends at start, or with SIGBUS when it is full",
            fix="leave /dev/shm to the operator, or raise its sizeLimit",
        )


def amount(value: Any) -> int | None:
    """A quantity as a number, rounded down; ``None`` for what is none."""
    try:
        return int(ResourceQuantity(value).value) if value is not None else None
    except ValueError:
        return None


def _alike(engines: tuple[Body, ...]) -> Iterator[Finding]:
    revisions: dict[str, list[Body]] = {}
    for pod in engines:
        revision = ((pod.get("metadata") or {}).get("labels") or {}).get(labels.REVISION, "")
        revisions.setdefault(str(revision), []).append(pod)
    if len(revisions) > 1:
        yield info(
            "two-revisions",
            "pods",
            f"engines of {len(revisions)} revisions run: {', '.join(sorted(r[:8] or '?' for r in revisions))}",
            why="they exchange no KV with each other; during a rollout that is as it should be",
            fix="wait for the rollout; a revision that stays is named in the condition Progressing",
        )
    for pods in revisions.values():
        yield from _seeds(pods)
        yield from _images(pods)


def _seeds(pods: list[Body]) -> Iterator[Finding]:
    seeds: dict[str, str] = {}
    for pod in pods:
        entries = [e for e in template.listed(main_container(pod["spec"]), "env") if e.get("name") == "PYTHONHASHSEED"]
        seeds[str(pod["metadata"]["name"])] = str(entries[-1].get("value", "")) if entries else ""
    bad = sorted(name for name, seed in seeds.items() if not seed.isdecimal())
    if bad or len(set(seeds.values())) > 1:
        shown = ", ".join(f"{name} {seed or 'none'}" for name, seed in sorted(seeds.items()))
        yield error(
            "hash-seed-differs",
            f"pod {bad[0]}" if bad else "pods",
            f"PYTHONHASHSEED is not the same number everywhere: {shown}",
            why="the same prompt has other block hashes in each engine: no tier and no router finds a prefix again",
            fix="remove what changes the pods: spec.engine.kv.hashSeed sets it for all",
        )


def _images(pods: list[Body]) -> Iterator[Finding]:
    running: dict[str, list[str]] = {}
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            digest = str(container.get("imageID") or "").rpartition("@")[2]
            if container.get("name") == "engine" and digest:
                running.setdefault(digest, []).append(str(pod["metadata"]["name"]))
    if len(running) > 1:
        shown = "; ".join(f"{digest[:19]}… {', '.join(sorted(names))}" for digest, names in sorted(running.items()))
        yield warning(
            "images-differ",
            "pods",
            f"engines of one revision run different builds of their image: {shown}",
            why="builds may differ in KV layout; the handshake compares versions, not builds",
            fix="name the image by digest in spec.engine.image, which rolls all engines",
        )


def _planned_pod(facts: ObjectFacts, role: str) -> Mapping[str, Any]:
    for manifest in workloads(facts.plan.objects) if facts.plan is not None else ():
        if role_of(manifest) == role:
            found: Mapping[str, Any] = pod_template(manifest)["spec"]
            return found
    return {}
