"""Volumes of a pod as folders, and the paths at which its container expects them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ManifestFault
from .pods import LocalPod

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount path in pods; processes share the machine's own


@dataclass(frozen=True)
class Sources:
    """Where the content of volumes comes from: ``secret(name)`` and ``config_map(name)`` give keys and text."""

    secret: Callable[[str], Mapping[str, str]]
    config_map: Callable[[str], Mapping[str, str]]
    claims: Path


def materialise(pod: LocalPod, folder: Path, sources: Sources) -> dict[str, str]:
    """Create the pod's volumes below ``folder``; return mount path to path on this machine.

    An emptyDir starts empty, as in a new pod. ``/dev/shm`` stays the machine's own. Claims
    lie below ``sources.claims`` and are kept. Raises ``ManifestFault`` for a kind of volume
    that a process cannot have.
    """
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes") or ()}
    mounts: dict[str, str] = {}
    for mount in pod.container.get("volumeMounts") or ():
        path = str(mount["mountPath"]).rstrip("/")
        if path == SHARED_MEMORY:
            continue
        volume = volumes.get(mount["name"])
        if volume is None:
            raise ManifestFault(f"{pod.name}: mount {path} names volume {mount['name']!r}, which does not exist")
        target = _volume(pod, volume, folder / mount["name"], sources)
        if sub_path := mount.get("subPath"):
            target = target / sub_path
        mounts[path] = str(target)
    return mounts


def claims(pods: Iterable[LocalPod], folder: Path) -> tuple[str, ...]:
    """Folders below ``folder`` of the claims that the pods mount, each once."""
    names = (
        str(volume["persistentVolumeClaim"]["claimName"])
        for pod in pods
        for volume in pod.spec.get("volumes") or ()
        if "persistentVolumeClaim" in volume
    )
    return tuple(str(folder / name) for name in dict.fromkeys(names))


def rewrite(text: str, mounts: Mapping[str, str]) -> str:
    """Replace mount paths where they stand as the beginning of a path, or of a URL's, in ``text``."""
    if not mounts:
        return text
    paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    pattern = rf"(?:(?<=://)|(?<![\w./-]))({paths})(?=$|[/\s:,;\"'}}\]])"
    return re.sub(pattern, lambda match: mounts[match.group(1)], text)


def _volume(pod: LocalPod, volume: Mapping[str, Any], folder: Path, sources: Sources) -> Path:
    if "emptyDir" in volume:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        return folder
    if "secret" in volume:
        source = volume["secret"]
        return _files(folder, source, sources.secret(source["secretName"]), default_mode=0o400)
    if "configMap" in volume:
        source = volume["configMap"]
        return _files(folder, source, sources.config_map(source["name"]), default_mode=0o600)
    if "persistentVolumeClaim" in volume:
        claim = sources.claims / str(volume["persistentVolumeClaim"]["claimName"])
        claim.mkdir(parents=True, exist_ok=True, mode=0o700)
        return claim
    if "hostPath" in volume:
        return Path(volume["hostPath"]["path"])
    kinds = ", ".join(key for key in volume if key != "name")
    raise ManifestFault(f"{pod.name}: volume {volume['name']!r} ({kinds}) cannot be had on one machine")


def _files(folder: Path, source: Mapping[str, Any], content: Mapping[str, str], default_mode: int) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    items = source.get("items") or [{"key": key, "path": key} for key in content]
    for item in items:
        if item["key"] not in content:
            if source.get("optional"):
                continue
            raise ManifestFault(f"{source.get('secretName') or source.get('name')} has no key {item['key']!r}")
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The group and others get nothing, whatever the manifest allows inside a pod.
        path.touch(mode=0o600)
        path.write_text(content[item["key"]])
        path.chmod(int(item.get("mode", default_mode)) & 0o700 | 0o400)
    return folder
