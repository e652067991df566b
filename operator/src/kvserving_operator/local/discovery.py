"""The file from which the router learns its engines.

Format of smg 1.13's file discovery: ``{"version": 1, "workers": [...]}``, where an unknown
member, worker type or version rejects the file as a whole. A new ``id`` at an address
tells the router that a new engine runs there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .state import write_atomic


@dataclass(frozen=True)
class Worker:
    """One engine that may get requests. ``generation`` counts the starts of its pod."""

    pod: str
    role: str
    address: str
    port: int
    generation: int
    connector: str | None


def render(workers: Iterable[Worker], *, disaggregated: bool) -> str:
    """Text of the file, in a fixed order; without prefill engines the workers have no type."""
    entries = []
    for worker in sorted(workers, key=lambda w: (w.role, w.pod)):
        entry: dict[str, object] = {
            "id": f"{worker.pod}.{worker.generation}",
            "url": f"http://{worker.address}:{worker.port}",
        }
        if disaggregated:
            entry["worker_type"] = worker.role
        if worker.connector is not None:
            entry["kv_connector"] = worker.connector
        entries.append(entry)
    return json.dumps({"version": 1, "workers": entries}, indent=1) + "\n"


def publish(path: Path, text: str) -> bool:
    """Replace the file when its text changed; whether it did."""
    if path.exists() and path.read_text() == text:
        return False
    write_atomic(path, text)
    return True
