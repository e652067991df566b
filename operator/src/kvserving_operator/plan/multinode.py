"""Engines that span nodes: a LeaderWorkerSet in place of a role's Deployment, a group of pods for each engine.

The leader of a group has vLLM's API and is what routers, probes and counters know; its workers compute. What becomes
of one pod becomes of the group: vLLM goes on with all of its ranks or with none. Facts of the kind:
https://github.com/kubernetes-sigs/lws/blob/v0.9.0/api/leaderworkerset/v1/leaderworkerset_types.go, of vLLM's flags:
https://github.com/vllm-project/vllm/pull/23691
"""

from __future__ import annotations

from typing import Any

from ..api.v1alpha1 import RoleName
from . import roles
from .context import Context
from .objects import manifest

API_VERSION, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
VARIABLES = ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")
"""What LeaderWorkerSet adds to the environment of every container of a group."""
# Groups below it keep their template; no set has that many.
_ALL_GROUPS = 1_000_000


def workload(ctx: Context, role: RoleName) -> dict[str, Any]:
    """What makes the engines of a role: a Deployment where each is one pod, else a LeaderWorkerSet."""
    return _groups(ctx, role) if ctx.role(role).nodes > 1 else roles.deployment(ctx, role)


def _groups(ctx: Context, role: RoleName) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    count = roles.replicas(ctx, role)
    if count is not None:
        spec["replicas"] = count
    spec |= {
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": _bounds(ctx)},
        "leaderWorkerTemplate": {
            "size": ctx.role(role).nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": roles.pod_template(ctx, role),
            "workerTemplate": roles.pod_template(ctx, role, worker=True),
        },
    }
    made = manifest(ctx, API_VERSION, KIND, ctx.names.groups(role), role=role, revision=ctx.revision, spec=spec)
    made["metadata"]["annotations"] = {**roles.notes(ctx), **roles.queue(ctx)}
    return made


def _bounds(ctx: Context) -> dict[str, Any]:
    """How groups follow a change of their template within one revision."""
    rollout = ctx.spec.rollout
    if rollout.paused:
        return {"maxSurge": 0, "maxUnavailable": 1, "partition": _ALL_GROUPS}
    if rollout.strategy == "Recreate":
        return {"maxSurge": 0, "maxUnavailable": "100%", "partition": 0}
    return {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable, "partition": 0}
