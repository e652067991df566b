"""The status of scale targets, which ``/scale`` shows to scalers: engine pods that exist, and their selector."""

from __future__ import annotations

from ..plan.types import Plan
from . import scaling
from .apply import Outcome
from .failures import ApiFailure, problem
from .kube import Kube
from .observe import Store, View, child_of
from .permissions import ROLE


async def report(kube: Kube, store: Store, view: View, plan: Plan, outcome: Outcome) -> None:
    """Write the status of each planned scale target that has something new to say.

    Writes and problems are noted in ``outcome``. Raises ``MayNotWrite`` when the Lease is lost.
    """
    for child, manifest in scaling.targets(view, plan):
        says = scaling.shown(view, child, manifest)
        if child.scale == says:
            continue
        try:
            body = await kube.apply_status(ROLE, scaling.status(view, child, says))
        except ApiFailure as failure:
            if failure.missing or failure.status == 409:
                # Gone, or another one of its name: the apply has made it anew, or will.
                store.doubt_child(view.serving.key, child.kind, child.name, child.uid)
            else:
                outcome.problems[child.identity] = problem(failure)
            continue
        outcome.writes += 1
        store.put_child(view.serving.key, child_of(body, child.api_version, child.kind))
