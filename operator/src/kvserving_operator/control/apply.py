"""The only writer of children: server-side apply by one field manager, and prune.

Nothing is forced, changed or deleted unless its controller is the very object (by UID) that is
reconciled. A name that something else has is refused, and said so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..api.v1alpha1 import API_VERSION
from ..plan import labels, multinode, workloads
from ..plan.types import Manifest, Plan
from ..reasons import Reason
from . import children, drift, scaling
from .children import Action, Wanted
from .contests import Contests
from .failures import ApiFailure, Problem, problem
from .kube import Json, Kube
from .observe import Child, Key, Store, View, child_of
from .permissions import resource_of
from .rollouts import Adjustment, adjusting

log = logging.getLogger(__name__)

Identity = tuple[str, str]
_WAIT_SECONDS = 1.0
_BUDGET_SECONDS = 20.0


@dataclass
class Outcome:
    """What applying a plan came to: writes that were made, and what could not be done, by child."""

    writes: int = 0
    problems: dict[Identity, Problem] = field(default_factory=dict)
    remade: list[str] = field(default_factory=list)
    """Names of generated Secrets that were gone and are made anew."""
    put_back: list[str] = field(default_factory=list)
    """What others had changed of children and is set again: each child with the first of its fields."""
    unfinished: bool = False
    """Whether the time for one reconciliation ran out before every child was looked at."""

    @property
    def again(self) -> bool:
        """Whether trying again may help."""
        return self.unfinished or any(found.again for found in self.problems.values())

    @property
    def retry_after(self) -> float:
        """Seconds before which trying again is of no use."""
        return max((found.retry_after for found in self.problems.values()), default=0.0)


class Applier:
    """Makes children as planned. ``absent`` are kinds (apiVersion, kind) that the cluster lacks."""

    def __init__(self, kube: Kube, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._now = now
        self._store = store
        self.absent: frozenset[Identity] = frozenset()
        # What the server made of an apply, where its entry in managedFields is not the manifest's shape: without it
        # such a child would be applied again and again.
        self._accepted: dict[str, tuple[str, Any]] = {}
        self._contests = Contests()

    async def apply(self, view: View, plan: Plan, outcome: Outcome) -> None:
        """Create and update every child of ``plan``; note writes and problems in ``outcome``.

        Raises ``MayNotWrite`` when the Lease is lost; every other failure is noted, and the other children are
        made all the same.
        """
        until = self._now() + _BUDGET_SECONDS
        # Pods are refused while their service account is missing, and the next attempt comes late.
        for manifest in sorted(plan.objects, key=lambda manifest: manifest["kind"] in workloads.KINDS):
            kind = (str(manifest["apiVersion"]), str(manifest["kind"]))
            identity = (kind[1], str(manifest["metadata"]["name"]))
            if (lacking := self._lacking(manifest)) is not None:
                outcome.problems[identity] = Problem(Reason.KIND_MISSING, lacking, again=False)
                continue
            if self._now() > until:
                # The apiserver is slow: others wait for this worker.
                outcome.unfinished = True
                return
            live = view.children.get(identity)
            try:
                await self._one(
                    view, children.wanted(view.serving, scaling.seeded(view, manifest, live), live), live, outcome
                )
            except ApiFailure as failure:
                outcome.problems[identity] = problem(failure)

    def _lacking(self, manifest: Manifest) -> str | None:
        """What the cluster lacks for ``manifest``: its kind, or the kind that it scales."""
        spec = manifest.get("spec")
        target = spec.get("scaleTargetRef") if isinstance(spec, Mapping) else None
        for api_version, kind in ((m["apiVersion"], m["kind"]) for m in (manifest, target) if m and "apiVersion" in m):
            if (api_version, kind) in self.absent:
                if api_version == API_VERSION:
                    way_out = "apply the CRDs of this release (kubectl apply --server-side -f crds/)"
                    return f"the cluster has no kind {kind}: {way_out}"
                if kind == multinode.KIND:
                    role = manifest["metadata"]["labels"][labels.ROLE]
                    return (
                        f"the cluster has no kind {kind} ({api_version}), of which engines on several nodes are made: "
                        f"install LeaderWorkerSet, or set spec.{role}.nodes to 1"
                    )
                return f"the cluster has no kind {kind} ({api_version}): install its CRD, or remove what asks for it"
        return None

    async def prune(self, view: View, doomed: tuple[Child, ...], outcome: Outcome) -> None:
        """Delete ``doomed`` children after a live look at each; note writes and problems in ``outcome``."""
        for child in doomed:
            if (child.api_version, child.kind) in self.absent:
                # It went with its kind.
                self._store.doubt_child(view.serving.key, child.kind, child.name, child.uid)
                continue
            resource = resource_of(child.api_version, child.kind)
            try:
                body = await self._kube.get(resource, child.namespace, child.name)
                if body is None:
                    # No deletion was told yet: an apiserver that lags may not know the child, which is still there.
                    self._store.doubt_child(view.serving.key, child.kind, child.name, child.uid)
                    continue
                live = child_of(body, child.api_version, child.kind)
                if live.owner is None or live.owner.uid != view.serving.uid or live.deleting:
                    continue
                await self._kube.delete(resource, live.namespace, live.name, uid=live.uid, version=live.version)
                outcome.writes += 1
                log.info("deleted %s", live)
            except ApiFailure as failure:
                if not failure.missing:
                    outcome.problems[child.identity] = problem(failure)

    async def adjust(self, view: View, adjustments: Iterable[Adjustment], outcome: Outcome) -> None:
        """Tell workloads of other revisions their numbers and traffic; note writes and problems in ``outcome``.

        They are not applied again: their pods were made from another spec.
        """
        for adjustment in adjustments:
            child = adjustment.child
            resource = resource_of(child.api_version, child.kind)
            try:
                body = await self._kube.adjust(resource, child.namespace, child.name, adjusting(adjustment))
                outcome.writes += 1
                self._store.put_child(view.serving.key, child_of(body, child.api_version, child.kind))
                log.info("%s: %d replicas", child, adjustment.replicas)
            except ApiFailure as failure:
                if failure.missing or failure.status == 409:
                    # Gone, or another one of its name.
                    self._store.doubt_child(view.serving.key, child.kind, child.name, child.uid)
                else:
                    outcome.problems[child.identity] = problem(failure)

    async def _one(self, view: View, child: Wanted, live: Child | None, outcome: Outcome) -> None:
        key, uid = view.serving.key, view.serving.uid
        if live is None:
            live = await self._create(key, child, outcome)
            if live is None:
                return
        match children.decide(child, live, uid):
            case Action.NOTHING:
                pass
            case Action.UPDATE if self._accepted.get(live.uid) != (child.digest, live.fields):
                if (pause := self._contests.pause(live.uid, child.digest)) > 0:
                    message = (
                        f"{live} is changed by someone else each time it is set: another operator of this namespace, or"
                        " a webhook; it is set again with growing pauses"
                    )
                    outcome.problems[child.identity] = Problem(Reason.CONFLICT, message, again=True, retry_after=pause)
                    return
                after = child_of(await self._update(child, live, outcome), child.api_version, child.kind)
                outcome.writes += 1
                self._note(key, child, after)
                # Where the plan changed too, an edit cannot be told from it; nor without any record of ours. An answer
                # that brought no field back is of a child that the server keeps in another shape.
                known = live.digest == child.digest and live.fields
                if known and (paths := drift.gained(live.fields, after.fields, live.adjusted)):
                    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
                    outcome.put_back.append(f"{live.kind} {live.name}, {paths[0]}{more}")
                log.info("updated %s", live)
            case (Action.REFUSE | Action.WAIT) as action:
                reason = Reason.OWNED_BY_OTHER if action is Action.REFUSE else Reason.WAITING_FOR_DELETION
                message = children.refusal(live, key.name)
                outcome.problems[child.identity] = Problem(reason, message, again=True, retry_after=_WAIT_SECONDS)
            case _:
                pass

    async def _update(self, child: Wanted, live: Child, outcome: Outcome) -> Json:
        """Apply ``child`` over ``live`` and return what is stored. Raises ``ApiFailure``.

        The ports of a Service are merged by their numbers: one whose number was edited stays beside ours, and the two
        have one name, which is refused. The list is then put in the place of the edited one first.
        """
        resource, body = resource_of(child.api_version, child.kind), _for(child.body, live)
        try:
            return await self._kube.apply(resource, body, force=True)
        except ApiFailure as failure:
            if child.kind != "Service" or failure.status != 422:
                raise
        ports = {
            "metadata": {"uid": live.uid, "resourceVersion": live.version},
            "spec": {"ports": child.body["spec"]["ports"]},
        }
        await self._kube.adjust(resource, live.namespace, live.name, ports)
        outcome.writes += 1
        return await self._kube.apply(resource, body, force=True)

    async def _create(self, key: Key, child: Wanted, outcome: Outcome) -> Child | None:
        """Create ``child`` and return ``None``; where its name is taken, return what has it, untouched.

        The watch shows labelled objects only, so a foreign one of this name is seen by trying.
        """
        resource = resource_of(child.api_version, child.kind)
        try:
            body = await self._kube.apply_new(resource, child.body)
        except ApiFailure as failure:
            if failure.status != 409:
                raise
            found = await self._kube.get(resource, key.namespace, child.name)
            if found is None:
                raise
            live = child_of(found, child.api_version, child.kind)
            if live.serving == key.name:
                self._store.put_child(key, live)
            return live
        outcome.writes += 1
        self._note(key, child, child_of(body, child.api_version, child.kind))
        log.info("created %s %s/%s", child.kind, key.namespace, child.name)
        return None

    def _note(self, key: Key, child: Wanted, answer: Child) -> None:
        self._store.put_child(key, answer)
        self._accepted.pop(answer.uid, None)
        if answer.owner is not None and children.decide(child, answer, answer.owner.uid) is Action.UPDATE:
            self._accepted[answer.uid] = (child.digest, answer.fields)
            log.debug("the server keeps %s in another shape than it was applied", answer)


def _for(body: Mapping[str, Any], live: Child) -> dict[str, Any]:
    # With the UID, an object that was replaced meanwhile is not touched; with the version, no number of a scaler's that
    # was not seen yet.
    version = {"resourceVersion": live.version} if scaling.carries_number(body) else {}
    return {**body, "metadata": {**body["metadata"], "uid": live.uid, **version}}
