"""The services of the lane: one object each, brought up by ``kvserving up``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from e2e.local.stage import LEASE_SECONDS, Topology

from .shapes import GPU, MODEL, Shape

SLOW_LEASE_SECONDS = 60
CACHED_TOKENS = 1000
"""Of kvcached's prefix cache, where it is bounded."""


@dataclass(frozen=True)
class Variant:
    """What differs between services. Without ``prefill`` it is one engine that does both: the yardstick."""

    name: str
    staged: bool = False
    large: bool = False
    """Whether the staging memory takes the longest prompt, and not only two of the crowd."""
    kvcached: bool = False
    tiers: bool = False
    bounded: bool = False
    """Whether kvcached's prefix cache may keep few tokens."""
    prefill: int = 1

    @property
    def lease_seconds(self) -> int:
        """A read of memory that kvcached maps takes longer than the lane's usual lease."""
        return SLOW_LEASE_SECONDS if self.kvcached and not self.large else LEASE_SECONDS


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("single", prefill=0),
        Variant("plain"),
        Variant("staged", staged=True),
        Variant("staged-large", staged=True, large=True),
        Variant("staged-l1", staged=True, tiers=True),
        Variant("kvcached", kvcached=True),
        Variant("kvcached-staged", staged=True, kvcached=True),
        Variant("kvcached-staged-large", staged=True, large=True, kvcached=True),
        Variant("kvcached-staged-l1", staged=True, kvcached=True, tiers=True),
        Variant("kvcached-bounded", staged=True, large=True, kvcached=True, bounded=True),
    )
}


@dataclass(frozen=True)
class Lane(Topology):
    """A variant with the model of a shape."""

    variant: Variant = VARIANTS["plain"]
    shape: Shape = GPU

    def text(self, name: str) -> str:
        """Return the object under ``name``."""
        variant, shape = self.variant, self.shape
        engine: dict[str, Any] = {"device": shape.device, "args": self.engine_arguments()}
        if variables := shape.environment():
            engine["env"] = [{"name": name, "value": value} for name, value in variables.items()]
        spec: dict[str, Any] = {
            "model": {"uri": f"file://{self.model}", "name": MODEL},
            "engine": engine,
            "decode": {"replicas": 1},
            "router": {"type": self.router},
        }
        if variant.prefill:
            spec["prefill"] = {"replicas": variant.prefill}
            size = shape.large_staging if variant.large else shape.staging
            staging = str(size) if variant.staged else "0"
            spec["transfer"] = {"lease": f"{variant.lease_seconds}s", "stagingMemory": staging}
        if variant.kvcached:
            spec["kvcached"] = {"enabled": True} | ({"maxCachedTokens": CACHED_TOKENS} if variant.bounded else {})
        if variant.tiers:
            spec["cache"] = {"l1": {"size": shape.l1}}
        return json.dumps(
            {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": name}, "spec": spec}
        )

    def engine_arguments(self) -> list[str]:
        """Return the arguments of the engines; their cache is fixed, as others share the GPU, not with kvcached."""
        shape, variant = self.shape, self.variant
        words = ["--enforce-eager", f"--max-model-len={shape.context}", f"--dtype={shape.dtype}"]
        size = shape.small_kv_bytes if variant.tiers or not variant.prefill else shape.kv_bytes
        if size is not None and not variant.kvcached:
            words += [f"--kv-cache-memory-bytes={size}", "--gpu-memory-utilization=0.1"]
        return words


def groups(names: list[str], together: int) -> list[list[str]]:
    """Return the variants in the order in which they are up, those of a group at once.

    kvcached takes all memory of its GPUs that is free when it starts, so each such variant is up alone.
    """
    found: list[list[str]] = []
    for name in names:
        alone = VARIANTS[name].kvcached
        if found and not alone and len(found[-1]) < together and not VARIANTS[found[-1][-1]].kvcached:
            found[-1].append(name)
        else:
            found.append([name])
    return found
