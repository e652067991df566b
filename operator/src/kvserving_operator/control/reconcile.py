"""One reconciliation: observe, plan, apply, report. Level-triggered: it looks at states, never at events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from pydantic import ValidationError

from .. import times
from ..api.fault_words import translate
from ..api.faults import Fault, InvalidSpec
from ..api.parse import plain
from ..api.v1alpha1 import API_VERSION, KIND, KVServing
from ..plan.planning import plan
from ..plan.scaling import wanted
from ..plan.types import Observed, Plan, Site
from ..reasons import Reason
from ..routers import ROUTERS
from . import children, drift, role_status, rollouts, scaling, status
from .apply import Applier, Outcome
from .conditions import conditions
from .contests import Contests
from .events import Event, EventKind, Recorder, transitions
from .facts import Facts, Transfer
from .failures import ApiFailure, Problem
from .kube import Kube
from .losses import Losses
from .named_secrets import awaited, field_of
from .observe import Key, Serving, Store, View, serving_of
from .permissions import SERVING
from .rollouts import Rollout, Rollouts
from .secrets import SecretKeeper
from .verification import Standing, Verifications, subjects

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """How a reconciliation ended. ``retry``: it should be tried again with growing delays, no earlier than
    ``retry_after`` seconds. ``again``: seconds until it is due anyway, ``None`` where only events matter."""

    outcome: Literal["gone", "invalid", "changed", "unchanged"]
    retry: bool = False
    retry_after: float = 0.0
    again: float | None = None


@dataclass(frozen=True)
class Reading:
    """A stored object as the plan takes it, or its faults."""

    serving: KVServing | None
    plan: Plan | None
    faults: tuple[Fault, ...]


def read(stored: Serving, site: Site, observed: Observed) -> Reading:
    """Return the plan of a stored object, or why there is none; never raises for what a cluster may hold.

    The apiserver has checked the CEL rules when it stored the object; they are not evaluated again.
    """
    source = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": stored.key.name,
            "namespace": stored.key.namespace,
            "uid": stored.uid,
            "generation": stored.generation,
        },
        "spec": stored.spec,
    }
    serving: KVServing | None = None
    try:
        value, faults, _ = plain(source)
        if faults:
            return Reading(None, None, faults)
        serving = KVServing.model_validate(value)
        return Reading(serving, plan(serving, site=site, observed=observed), ())
    except ValidationError as error:
        return Reading(None, None, tuple(translate(error)))
    except InvalidSpec as error:
        return Reading(serving, None, error.faults)


Engine = tuple[str | None, str | None]
"""vLLM version and image."""


def observed_of(view: View, optional_kinds: frozenset[str], planned: Engine | None = None) -> Observed:
    """Return what the plan may build on: the engine that was chosen already, and which kinds are installed.

    The engine is read from what the operator noted on the roles' Deployments; where nothing is left of that, it is the
    one that this process ``planned`` last, and the status only after a restart: anyone may have edited it.
    """
    noted: set[Engine] = {child.workload.engine for child in view.owned() if child.workload and child.workload.engine}
    last = view.serving.status.get("engine") or {}
    told: Engine = (last.get("version"), last.get("image"))
    if len(noted) > 1:
        # One revision follows another: the newer one was planned last.
        found = next((engine for engine in (planned, told) if engine in noted), min(noted))
    else:
        found = next(iter(noted), planned or told)
    version, image = found
    return Observed(engine_version=version, engine_image=image, kinds=optional_kinds)


class Reconciler:
    """Reconciles one object at a time per key. ``optional_kinds`` are installed kinds that a plan may use.

    ``troubles`` tells of one object, by UID, what its engines suffer from, ``watched_until`` when the last operator
    still ran, on the wall clock; ``None`` where that is not known. ``replaced`` are the UIDs of pods that the operator
    deleted because of what they suffered from.
    """

    def __init__(
        self,
        kube: Kube,
        store: Store,
        applier: Applier,
        secrets: SecretKeeper,
        verifications: Verifications,
        recorder: Recorder,
        site: Site,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        troubles: Callable[[str], Mapping[tuple[str, str], Problem]] = lambda uid: {},
        watched_until: Callable[[], float | None] = lambda: None,
        replaced: Callable[[str], Collection[str]] = lambda uid: (),
    ) -> None:
        self._kube = kube
        self._store = store
        self._applier = applier
        self._secrets = secrets
        self._verifications = verifications
        self._recorder = recorder
        self._site = site
        self._wall = wall
        self._troubles = troubles
        self._replaced = replaced
        self._uids: dict[Key, str] = {}
        self._contests = Contests()
        self._losses = Losses()
        self._rollouts = Rollouts(watched_until)
        self._engines: dict[str, Engine] = {}
        self._kept: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {}
        self.optional_kinds: frozenset[str] = frozenset()

    async def run(self, key: Key) -> Result:
        """Bring the cluster nearer to the plan of ``key``. Raises ``MayNotWrite``; ``ApiFailure`` when the status
        cannot be written."""
        view = self._store.view(key)
        if view is None or self._uids.get(key, view.serving.uid) != view.serving.uid:
            former = self._uids.pop(key, "")
            self._verifications.forget(former)
            self._rollouts.forget(former)
            self._kept.pop(former, None)
            self._engines.pop(former, None)
            self._secrets.forget(former)
            self._losses.forget(former)
        if view is None:
            return Result("gone")
        if view.serving.deleting:
            self._verifications.forget(view.serving.uid)
            self._secrets.forget(view.serving.uid)
            return Result("gone")
        self._uids[key] = view.serving.uid
        observed = observed_of(view, self.optional_kinds, self._engines.get(view.serving.uid))
        reading = read(view.serving, self._site, observed)
        if reading.plan is None or reading.serving is None:
            _, pause = await self._report(self._facts_of_invalid(view, reading), None)
            return Result("invalid", again=pause)
        profile = reading.plan.profile
        self._engines[view.serving.uid] = (profile.engine_version, profile.engine_image)
        return await self._step(view, reading.plan, reading.serving)

    async def _step(self, view: View, planned: Plan, serving: KVServing) -> Result:
        """Take the next step towards ``planned``: apply, delete what may go, report."""
        outcome = Outcome()
        standings = self._standings(view, planned, serving)
        numbers = wanted(serving.spec, scaling.asked(view))
        rollout = self._rollouts.decide(
            view,
            planned,
            serving,
            rollouts.asked(serving, planned, numbers.engines),
            {revision: standing.proof for revision, standing in standings.items()},
            self._wall(),
        )
        if any(pod.failing == "CreateContainerConfigError" for pod in view.pods):
            self._secrets.doubt(view.serving.uid)
        await self._secrets.ensure(view.serving, planned.generated_secrets, outcome)
        if outcome.remade:
            told = f"{', '.join(outcome.remade)}: it was gone and is made anew; pods read it again in about two minutes"
            await self._recorder.send(view.serving, (Event(EventKind.SECRET_REMADE, told),))
        needs = awaited(planned, view.pods)
        needed = {name: (field_of(serving, name, need), need.keys) for name, need in needs.items()}
        await self._secrets.look_for(view.serving, needed, outcome)
        await self._applier.apply(view, rollouts.shape(planned, rollout), outcome)
        if outcome.put_back:
            told = f"set again, as someone else changed it (change the {KIND} instead): {'; '.join(outcome.put_back)}"
            await self._recorder.send(view.serving, (Event(EventKind.EDIT_PUT_BACK, told),))
        if _terminates(view, outcome):
            # It goes with its namespace, where no event can be made any more either.
            return Result("gone")
        await self._applier.adjust(view, rollout.adjustments, outcome)
        self._rollouts.note(view.serving.uid, outcome.problems)
        delays = [standing.again for standing in standings.values()]
        facts = Facts(
            view=view,
            plan=planned,
            revision=planned.revision,
            disaggregated=serving.spec.prefill is not None,
            routed=serving.spec.router.type in ROUTERS,
            suspended=serving.spec.suspend,
            problems={**outcome.problems, **self._troubles(view.serving.uid)},
            transfer=standings[planned.revision].transfer if planned.revision in standings else None,
            rollout=rollout,
            scaling=numbers,
        )
        facts = replace(facts, lost=self._losses.see(facts, self._replaced(view.serving.uid)))
        delays += [rollout.again, await self._settle(facts, planned, serving, rollout, outcome)]
        return Result(
            "changed" if outcome.writes else "unchanged",
            retry=outcome.again,
            retry_after=outcome.retry_after,
            again=min((delay for delay in delays if delay is not None), default=None),
        )

    def _standings(self, view: View, planned: Plan, serving: KVServing) -> dict[str, Standing]:
        """What is known about the transfer in each revision that has engines; nothing in aggregated mode."""
        if serving.spec.prefill is None:
            self._verifications.retain(view.serving.uid, ())
            return {}
        asked = subjects(view, planned, serving, routed=serving.spec.router.type in ROUTERS)
        self._verifications.retain(view.serving.uid, {subject.revision for subject in asked})
        return {subject.revision: self._verifications.ask(view, subject) for subject in asked}

    async def _settle(
        self, facts: Facts, planned: Plan, serving: KVServing, rollout: Rollout, outcome: Outcome
    ) -> float | None:
        """Delete what may go and report what is there after applying; return when to report again."""
        stored = facts.view.serving
        view = self._store.view(stored.key)
        if view is None or view.serving.uid != stored.uid:
            return None
        await self._applier.prune(view, children.superfluous(view, planned, removed=rollout.removed), outcome)
        await role_status.report(self._kube, self._store, view, planned, outcome)
        # The report is of the spec that was planned: one that was written meanwhile has not been looked at.
        told = replace(view, serving=replace(view.serving, generation=stored.generation, spec=stored.spec))
        written, pause = await self._report(replace(facts, view=told), serving)
        if written:
            outcome.writes += 1
        return pause

    def _facts_of_invalid(self, view: View, reading: Reading) -> Facts:
        """Facts about what runs, while the spec cannot be planned."""
        last = view.serving.status
        roles = {child.role for child in view.owned() if child.workload is not None}
        return Facts(
            view=view,
            plan=None,
            revision=str(last.get("revision") or ""),
            disaggregated="prefill" in roles,
            routed="router" in roles,
            suspended=False,
            faults=status.public(reading.faults, view.serving.spec),
            transfer=_last_transfer(last) if "prefill" in roles else None,
        )

    async def _report(self, facts: Facts, serving: KVServing | None) -> tuple[bool, float | None]:
        """Write the status if it says something new, and send the events of the change.

        Returns whether it did, and where someone else undoes it each time, in how many seconds it is due again.
        """
        stored = facts.view.serving
        now = times.stamp(self._wall())
        clean = status.cleaner(stored.spec)
        found = tuple(replace(condition, message=clean(condition.message)) for condition in conditions(facts))
        document = status.document(facts, found, serving, now=now)
        said = status.comparable(document)
        if not status.changed(stored.status, document) or self._kept.get(stored.uid) == (said, stored.status):
            return False, None
        if (pause := self._contests.pause(f"{stored.uid}/{drift.digest(said)}", "")) > 0:
            return False, pause
        try:
            body = await self._kube.apply_status(SERVING, status.patch(stored, document))
        except ApiFailure as failure:
            if failure.missing:
                return False, None
            raise
        after = serving_of(body)
        self._store.put_serving(after)
        self._kept.pop(stored.uid, None)
        if status.changed(after.status, document):
            # Fields of another manager: to leave them out of the document does not take them away.
            self._kept[stored.uid] = (said, after.status)
        for event in (sent := transitions(stored.status, document)):
            log.info("%s: %s", event.kind.reason, event.message)
        await self._recorder.send(stored, sent)
        return True, None


def _terminates(view: View, outcome: Outcome) -> bool:
    """Whether the namespace is being deleted, as far as refused children or pods tell."""
    refused = (child.workload.condition("ReplicaFailure") for child in view.owned() if child.workload is not None)
    pods = any(found is not None and "because it is being terminated" in found[2] for found in refused)
    return pods or any(problem.terminating for problem in outcome.problems.values())


def _last_transfer(last: Mapping[str, object]) -> Transfer | None:
    found = last.get("conditions")
    for condition in found if isinstance(found, list) else ():
        if condition.get("type") == "TransferVerified":
            try:
                return Transfer(condition["status"], Reason(condition["reason"]), condition["message"])
            except ValueError:
                return None
    return None
