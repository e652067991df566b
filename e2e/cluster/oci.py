"""Images without a build: an OCI archive from files, folders and links, as containerd imports it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_IMAGE = "application/vnd.oci.image"


@dataclass(frozen=True)
class Content:
    """What the one layer of an image holds; all paths are absolute."""

    files: Mapping[str, Path] = field(default_factory=dict)
    folders: Iterable[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)


def write(archive: Path, name: str, content: Content, config: Mapping[str, Any]) -> None:
    """Write the image ``name``; ``config`` has its Entrypoint, Env and User. The same input gives the same bytes."""
    layer = _layer(content)
    machine = {"architecture": MACHINES.get(platform.machine(), platform.machine()), "os": "linux"}
    settings = _json({**machine, "config": config, "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]}})
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_IMAGE}.manifest.v1+json",
            "config": _descriptor(settings, "config.v1+json"),
            "layers": [_descriptor(layer, "layer.v1.tar")],
        }
    )
    listed = _descriptor(manifest, "manifest.v1+json")
    listed["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = _json({"schemaVersion": 2, "mediaType": f"{_IMAGE}.index.v1+json", "manifests": [listed]})
    blobs = {f"blobs/sha256/{_digest(blob).partition(':')[2]}": blob for blob in (settings, manifest, layer)}
    parts = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index, **blobs}
    with tarfile.open(archive, "w") as tar:
        for path, data in parts.items():
            _add(tar, path, data, 0o644)


def _layer(content: Content) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        for path in sorted(_with_parents(content)):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type = tarfile.DIRTYPE
            # As /tmp: what a pod may write to there is a volume, or the container's own.
            entry.mode = 0o1777 if path == "/tmp" else 0o755
            tar.addfile(entry)
        for path, target in sorted(content.links.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type = tarfile.SYMTYPE
            entry.linkname = target
            tar.addfile(entry)
        for path, file in sorted(content.files.items()):
            _add(tar, path.lstrip("/"), file.read_bytes(), 0o755)
    return found.getvalue()


def _with_parents(content: Content) -> set[str]:
    named = [Path(folder) for folder in content.folders]
    named += [Path(path).parent for path in (*content.files, *content.links)]
    return {str(path) for one in named for path in (one, *one.parents) if str(path) != "/"}


def _add(tar: tarfile.TarFile, path: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(data)
    entry.mode = mode
    tar.addfile(entry, io.BytesIO(data))


def _descriptor(data: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": f"{_IMAGE}.{kind}", "digest": _digest(data), "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
