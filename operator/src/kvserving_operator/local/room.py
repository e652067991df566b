"""Whether memory and disk of this machine hold what a run takes; each fault shows the sum."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from .. import connectors
from ..amounts import size
from ..memory import CPU_ENGINE_BYTES, MOST_OF_DECODE
from .logfile import LIMIT
from .pods import LocalPod
from .run import Run
from .storedisk import nearest

GIB = 2**30
_OTHER_FILES = 64 * 2**20
"""What a service writes beside its logs, at most."""


def together(terms: list[tuple[str, str]]) -> str:
    """The sum of what each pod needs; those of one role that need the same stand once, with their number."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, need in terms:
        alike.setdefault((name.rpartition("-")[0], need), []).append(name)
    return " + ".join(
        f"{names[0]} {need}" if len(names) == 1 else f"{len(names)} \N{MULTIPLICATION SIGN} {workload} {need}"
        for (workload, need), names in alike.items()
    )


def reservations(pods: list[LocalPod], available: int) -> list[str]:
    """A notice when the engines' requests for memory are above ``available`` bytes: nothing reserves them here."""
    from ..api.types import Quantity

    asked = []
    for pod in (p for p in pods if p.is_engine):
        amount = ((pod.container.get("resources") or {}).get("requests") or {}).get("memory")
        asked.append((pod.name, 0 if amount is None else Quantity(str(amount)).bytes))
    total = sum(need for _, need in asked)
    if total <= available:
        return []
    terms = together([(name, size(need)) for name, need in asked if need])
    return [
        f"the engines ask for more memory than is available (resources.requests.memory): {terms} = {size(total)}"
        f" of {size(available)}. A cluster would not place them; on one machine nothing is reserved"
    ]


_WAYS = {
    "KV": "VLLM_CPU_KVCACHE_SPACE (whole GiB) in spec.engine.env",
    "KV blocks": "--num-gpu-blocks-override in spec.engine.args",
    "staging": "spec.transfer.stagingMemory",
    "host tier": "the sizes in spec.cache",
}
"""What makes a part of the sum smaller. The engine itself and its weights are what they are."""


def memory(run: Run, pods: list[LocalPod], available: int) -> list[str]:
    """A fault when the CPU engines' estimate is above ``available`` bytes; the text shows the sum."""
    terms: list[tuple[str, str]] = []
    total = 0
    words = {"KV"}
    for pod in (p for p in pods if p.is_engine and not p.gpus and p.is_python):
        try:
            parts = _parts(run, pod)
        except ValueError as error:
            return [f'{pod.name}: {error}: write "1" (GiB) in spec.engine.env']
        shown = [f"{size(part)} {word}" for word, part in parts.items() if part > _NOT_SHOWN.get(word, 0)]
        need = sum(parts.values())
        terms.append((pod.name, f"{size(need)} ({' + '.join(shown)})"))
        total += need
        words.update(word for word, part in parts.items() if part)
    for pod in (p for p in pods if p.role == "store"):
        need = int(pod.container["resources"]["limits"]["memory"])
        terms.append((pod.name, size(need)))
        total += need
        words.add("host tier")
    if total <= available:
        return []
    *ways, last = [way for word, way in _WAYS.items() if word in words]
    return [
        f"too little memory: {together(terms)} = {size(total)}, but {size(available)} are available. Stop other"
        f" programs, lower {', '.join(['replicas', *ways])} or {last}"
    ]


_NOT_SHOWN = {"weights": int(0.05 * GIB)}
"""Bytes of a part up to which it does not lengthen the sum."""


def _parts(run: Run, pod: LocalPod) -> dict[str, int]:
    """Bytes of host memory of all ranks of a CPU engine by what holds them. Raises ``ValueError`` for wrong sizes."""
    tensor, pipeline, data = (int(pod.option(f"--{kind}-parallel-size") or 1) for kind in _KINDS_OF_RANKS)
    entries = {e["name"]: e.get("value") for e in pod.container.get("env") or ()}
    space = entries.get("VLLM_CPU_KVCACHE_SPACE") or "1"
    try:
        kv = int(float(space) * GIB) * tensor * pipeline * data
    except (ValueError, OverflowError):
        raise ValueError(f"VLLM_CPU_KVCACHE_SPACE={space} is no number of GiB") from None
    asked = pod.option("--num-gpu-blocks-override") or ""
    blocks = int(asked) * run.block_bytes * data if asked.isdecimal() else 0
    tier, staging = (data * _each(pod, "cpu_bytes_to_use"), tensor * data * _each(pod, "staging_bytes"))
    if pod.role == "decode":
        staging = min(staging, tensor * data * MOST_OF_DECODE)
    return {
        "engine": CPU_ENGINE_BYTES,
        # The number of blocks wins over the space; where the space is more, blocks may be larger than is known.
        **({"KV blocks": blocks} if blocks > kv else {"KV": kv}),
        "weights": run.weights_bytes * data,
        "host tier": tier,
        "staging": staging,
    }


_KINDS_OF_RANKS = ("tensor", "pipeline", "data")


def _each(pod: LocalPod, setting: str) -> int:
    """The bytes that the connectors of an engine are told in ``setting``, all together."""
    found = connectors.children(json.loads(pod.option("--kv-transfer-config") or "{}"))
    return sum(int((child.get("kv_connector_extra_config") or {}).get(setting, 0)) for child in found)


def available_memory() -> int:
    """Bytes that programs can still get: MemAvailable, or less where a cgroup allows less."""
    text = Path("/proc/meminfo").read_text()
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    assert match is not None
    available = int(match.group(1)) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)", Path("/sys/fs/cgroup/memory.stat").read_text(), re.MULTILINE)
    except OSError:
        return available
    if limit == "max":
        return available
    return max(0, min(available, int(limit) - used + (int(cached.group(1)) if cached else 0)))


def disk(pods: list[LocalPod], folder: Path, free: Callable[[Path], int]) -> list[str]:
    """A fault for each disk that does not hold what the pods may write, as ``full_disks`` finds them."""
    full = full_disks(pods, folder, free)
    return [f"too little disk: {what}. {way_out[0].upper()}{way_out[1:]}" for what, way_out in full]


def full_disks(pods: list[LocalPod], folder: Path, free: Callable[[Path], int]) -> list[tuple[str, str]]:
    """The disks that do not hold what the pods may write below ``folder``, that of all services, with the way out.

    ``free`` tells the free bytes where a folder is, or is to be. What a store on a claim holds already is room for it.
    """
    parts = [(folder, f"{len(pods)} logs of {size(2 * LIMIT)} + {size(_OTHER_FILES)}", disk_needed(len(pods)))]
    for store, bound in stores_in_folders(pods, folder / "claims").items():
        held = _held(store)
        told = f"{size(bound)} of spec.cache.l2.size{f' - {size(held)} that are stored' if held else ''}"
        parts.append((store, told, max(0, bound - held)))
    disks: dict[int, list[tuple[Path, str, int]]] = {}
    for part in parts:
        disks.setdefault(nearest(part[0]).stat().st_dev, []).append(part)
    return [fault for needs in disks.values() if (fault := _full(needs, free(needs[0][0])))]


def _full(needs: list[tuple[Path, str, int]], free: int) -> tuple[str, str] | None:
    total = sum(need for _, _, need in needs)
    if total <= free:
        return None
    smaller = ", make spec.cache.l2.size smaller" if any("spec.cache.l2.size" in told for _, told, _ in needs) else ""
    what = f"{' + '.join(told for _, told, _ in needs)} = {size(total)}, but {needs[0][0]} has {size(free)}"
    return what, f"free some{smaller}, or name another folder by KVSERVING_STATE_DIR"


def disk_needed(pods: int) -> int:
    """Bytes that so many pods may write below the folder of all services, beside what a store keeps there."""
    return pods * 2 * LIMIT + _OTHER_FILES


def free_disk(folder: Path) -> int:
    """Bytes that this user may still write where ``folder`` is, or is to be."""
    stats = os.statvfs(nearest(folder))
    return stats.f_bavail * stats.f_frsize


def stores_in_folders(pods: list[LocalPod], claims: Path) -> dict[Path, int]:
    """The folders of this machine in which engines keep a store, each with the bytes to which they bound it."""
    found: dict[Path, int] = {}
    for pod in (p for p in pods if p.is_engine):
        for child in connectors.children(json.loads(pod.option("--kv-transfer-config") or "{}")):
            for tier in (child.get("kv_connector_extra_config") or {}).get("secondary_tiers") or ():
                for path in (url.removeprefix("file://") for url in tier.get("urls") or () if _is_file(url)):
                    if (folder := _on_this_machine(pod, path, claims)) is not None and "max_bytes" in tier:
                        found[folder] = max(found.get(folder, 0), int(tier["max_bytes"]))
    return found


def _is_file(url: str) -> bool:
    return url.startswith("file://")


def _on_this_machine(pod: LocalPod, path: str, claims: Path) -> Path | None:
    """The folder of the claim that is mounted at ``path``; None where none is."""
    names = {m["name"] for m in pod.container.get("volumeMounts") or () if m.get("mountPath") == path}
    for volume in pod.spec.get("volumes") or ():
        if volume["name"] in names and (claim := volume.get("persistentVolumeClaim")):
            return claims / str(claim["claimName"])
    return None


def _held(folder: Path) -> int:
    """Bytes of the files below ``folder``; those that go meanwhile are none."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total
