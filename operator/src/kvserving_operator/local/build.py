"""From a run to the processes of its pods: addresses, keys, volumes, cores and GPUs put together."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from . import cores, gpus, scratch, stores, usersecrets, volumes
from .addresses import allocate
from .container import BIND_ADDRESS, Placement, process_spec, with_interpreter
from .errors import EnvironmentFault
from .launchers import CONNECTOR_VOLUME, link_connector
from .podrunner import PodSpec
from .pods import LocalPod
from .pods import config_maps as config_maps_of
from .probes import Probe, parse
from .procfs import INSTANCE
from .run import Run
from .state import PodState, ServiceDir, State, allocation_lock, services, write_atomic

_CPU_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
_SIDE_CHANNEL_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"


def place_addresses(run: Run, directory: ServiceDir, pods: list[LocalPod], state: State) -> dict[str, str]:
    """Choose an address for each pod and claim them in the state file.

    ``state`` is written with the pods' addresses before another service may choose.
    """
    ports = sorted({port for pod in pods for port in bound_ports(pod)})
    with allocation_lock(directory.base):
        others = [s.read() for s in services(directory.base) if s.name != directory.name]
        taken = {pod.address for other in others if other is not None for pod in other.pods}
        # The folder, not the name: two users who run an example would otherwise both take the same free addresses
        # while their engines load, a minute before the first of them binds.
        found = allocate(str(directory.path.resolve()), len(pods), ports, taken)
        addresses = {pod.name: address for pod, address in zip(pods, found, strict=True)}
        directory.write(claim(state, pods, addresses, run))
    return addresses


def bound_ports(pod: LocalPod) -> set[int]:
    """Ports that the pod binds at its own address; the router's data port is elsewhere."""
    if pod.role == "router":
        return {int(p["containerPort"]) for p in pod.container.get("ports") or () if p.get("name") not in _MOVED}
    side = next((e.get("value") for e in pod.container.get("env") or () if e["name"] == _SIDE_CHANNEL_PORT), None)
    return {*pod.port_numbers, *([int(side)] if side else ())}


_MOVED = ("http", "health")
"""Named ports of a router that are served at the address given by the user."""


def claim(state: State, pods: list[LocalPod], addresses: Mapping[str, str], run: Run) -> State:
    """The state with every pod at its address, none started."""
    return replace(
        state,
        pods=tuple(PodState(pod.name, pod.role, *_reached_at(pod, addresses[pod.name], run)) for pod in pods),
    )


def _reached_at(pod: LocalPod, address: str, run: Run) -> tuple[str, int]:
    if pod.role != "router":
        return address, pod.port
    parts = urlsplit(run.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def generate_secrets(run: Run, directory: ServiceDir) -> dict[str, dict[str, str]]:
    """Make the keys of this run, in lowercase hex, below ``secrets/`` for the owner alone."""
    made: dict[str, dict[str, str]] = {}
    for name, keys in run.generated_secrets.items():
        folder = directory.secrets / name
        folder.mkdir(mode=0o700, exist_ok=True)
        made[name] = {key: secrets.token_hex(size) for key, size in keys.items()}
        for key, value in made[name].items():
            write_atomic(folder / key, value + "\n")
    return made


def pod_specs(
    run: Run, directory: ServiceDir, pods: list[LocalPod], addresses: Mapping[str, str], instance: str
) -> list[PodSpec]:
    """Everything that is needed to start the pods; volumes and keys exist when this returns.

    Raises ``ManifestFault`` for what a process cannot have and ``EnvironmentFault`` when a
    Secret of the user is missing or there are too few GPUs.
    """
    made = generate_secrets(run, directory)
    maps = config_maps_of(run.objects)

    def secret(name: str) -> Mapping[str, str]:
        return made[name] if name in made else usersecrets.read(name)

    def secret_key(name: str, key: str) -> str:
        return made[name][key] if name in made else usersecrets.read(name, (key,))[key]

    sources = volumes.Sources(secret, lambda name: maps[name], directory.base / "claims")
    devices = gpus.assign({pod.name: pod.gpus for pod in pods}, gpus.visible() if any(p.gpus for p in pods) else [])
    if devices is None:
        raise EnvironmentFault("not enough GPUs")
    binding = cores.shares({p.name: int(p.option("--tensor-parallel-size") or 1) for p in pods if p.is_engine})

    temporary = str(scratch.make(instance))
    hosts = {pod.host: addresses[pod.name] for pod in pods if pod.host}
    specs = []
    for pod in pods:
        address = addresses[pod.name]
        folder = directory.pods / pod.name
        folder.mkdir(mode=0o700, exist_ok=True)
        mounts = volumes.materialise(pod, folder / "volumes", sources)
        if pod.is_engine and run.connector is not None:
            link_connector(Path(run.connector), folder / "volumes" / CONNECTOR_VOLUME)
        interpreter = run.engine_python if pod.is_engine else run.router_python
        environment = environment_of(address, instance)
        defaults = {"TMPDIR": temporary}
        if pod.is_engine:
            if pod.gpus:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices[pod.name])
            else:
                defaults[_CPU_THREADS] = binding[pod.name]
            if run.connector is not None:
                defaults["PYTHONPATH"] = str(folder / "volumes" / CONNECTOR_VOLUME)
        elif pod.role == "store":
            environment["PATH"] = stores.search_path(directory.pods / "store-programs")
        else:
            environment["KVSERVING_DISCOVERY_FILE"] = str(directory.discovery_file)
        place = Placement(
            address=address,
            interpreter=interpreter,
            mounts=mounts,
            environment=environment,
            defaults=defaults,
            secret=secret_key,
            config_map=lambda name: maps[name],
            hosts=hosts,
            listen=run.listen if pod.role == "router" else None,
        )
        specs.append(pod_spec(pod, place, folder, _reached_at(pod, address, run)))
    return specs


def environment_of(address: str, instance: str) -> dict[str, str]:
    """What every process of a run gets: its address, and the mark of the run."""
    return {BIND_ADDRESS: address, INSTANCE: instance, "SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"}


def pod_spec(
    pod: LocalPod,
    place: Placement,
    folder: Path,
    reached: tuple[str, int],
    inherited: Mapping[str, str] | None = None,
) -> PodSpec:
    """What a runner needs for one pod, whose volumes exist; its processes run in ``folder``.

    ``reached`` is where its data port is served, ``inherited`` what its environment begins with (ours by default).
    """
    named = {str(p["name"]): int(p["containerPort"]) for p in pod.container.get("ports") or () if "name" in p}
    moved = {} if place.listen is None else {named[name]: reached for name in _MOVED if name in named}

    def probe(kind: str) -> Probe | None:
        return parse(
            pod.container.get(kind), host=place.address, ports=named, interpreter=place.interpreter, moved=moved
        )

    hook = (((pod.container.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}).get("command")
    return PodSpec(
        pod=pod,
        address=reached[0],
        port=reached[1],
        process=process_spec(pod, place, inherited),
        folder=folder,
        startup=probe("startupProbe"),
        readiness=probe("readinessProbe"),
        liveness=probe("livenessProbe"),
        pre_stop=tuple(with_interpreter([str(part) for part in hook], place.interpreter)) if hook else None,
    )
