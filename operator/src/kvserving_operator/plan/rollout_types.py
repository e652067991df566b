"""What a step of a rollout is planned from, and what it says. All frozen; nothing here decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ..api.v1alpha1 import RoleName, Rollout
from ..reasons import Reason

SetRole = Literal["prefill", "decode", "router"]
ENGINES: tuple[RoleName, ...] = ("prefill", "decode")
ROLES: tuple[SetRole, ...] = ("prefill", "decode", "router")


class Verification(StrEnum):
    """What is known about the transfer inside a set. A result holds for the engines that are ready now."""

    UNKNOWN = "unknown"
    VERIFIED = "verified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of one role in one set. Pods that ended count nowhere.

    ``wanted`` is what the workload was told. ``existing`` holds ``draining``: pods that were told to
    stop and still hold their devices. ``ready`` are those that take requests, so none of them drains.
    ``pending`` are those that the scheduler found no node for. ``devices`` is what each holds. ``overdue`` is
    the name of one that drains for longer than its grace.
    """

    wanted: int = 0
    existing: int = 0
    ready: int = 0
    draining: int = 0
    pending: int = 0
    devices: int = 0
    overdue: str = ""


@dataclass(frozen=True, slots=True)
class RevisionSet:
    """Prefill, decode and router of one revision.

    ``number`` grows with each new set. ``prefill`` is ``None`` in aggregated mode and ``router``
    where the object deploys none. ``failure`` is the sentence of a failed verification.
    """

    revision: str
    number: int
    decode: Pods
    prefill: Pods | None = None
    router: Pods | None = None
    verification: Verification = Verification.UNKNOWN
    failure: str = ""

    def pods(self, role: SetRole) -> Pods | None:
        """The pods of a role; ``None`` where the set has no such role."""
        if role == "prefill":
            return self.prefill
        return self.decode if role == "decode" else self.router


@dataclass(frozen=True, slots=True)
class Observation:
    """The sets of one object as they are.

    ``traffic`` names the sets that stand behind the Service. ``failed`` is the revision whose rollout was
    recorded as failed (``Fail``), until the user asks for another one. ``free`` is the number of devices
    that no pod holds, ``None`` where that is not known or nodes come on demand. ``progressed_at`` is since when
    nothing was gained (``rollout_progress``), on the clock of ``now``. ``refused`` says why the changes of the last
    step came to nothing; empty where none did.
    """

    sets: tuple[RevisionSet, ...] = ()
    traffic: tuple[str, ...] = ()
    failed: str | None = None
    free: int | None = None
    now: float = 0.0
    progressed_at: float = 0.0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the object asks for: the revision of its spec and the pods of each role.

    ``prefill`` is ``None`` in aggregated mode, ``router`` where the object deploys none. The devices are
    those of one pod of this revision.
    """

    revision: str
    decode: int
    prefill: int | None = None
    router: int | None = None
    prefill_devices: int = 0
    decode_devices: int = 0

    def count(self, role: SetRole) -> int | None:
        """The pods of a role; ``None`` where it is not asked for."""
        count = self.prefill if role == "prefill" else self.decode if role == "decode" else self.router
        return None if count is None else max(0, count)

    @property
    def off(self) -> bool:
        """Whether the numbers leave nothing that could serve, so that nothing can be verified either."""
        return self.count("prefill") == 0 or self.count("decode") == 0


@dataclass(frozen=True, slots=True)
class Settings:
    """How sets are exchanged; surge and unavailability are counted in pairs of one prefill and one decode.

    ``unready_first`` says that a workload which gets smaller gives up pods that are not ready first, as
    Deployments do; LeaderWorkerSets take the highest index.
    """

    strategy: Literal["Paired", "Recreate"] = "Paired"
    max_surge: int = 1
    max_unavailable: int = 0
    paused: bool = False
    progress_deadline: float = 3600.0
    unready_first: bool = True

    @classmethod
    def of(cls, rollout: Rollout, *, unready_first: bool = True) -> Settings:
        """The settings of a spec."""
        return cls(
            strategy=rollout.strategy,
            max_surge=rollout.max_surge,
            max_unavailable=rollout.max_unavailable,
            paused=rollout.paused,
            progress_deadline=float(rollout.progress_deadline.seconds),
            unready_first=unready_first,
        )


class Phase(StrEnum):
    """Where a rollout is."""

    COMPLETE = "Complete"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    STOPPED = "Stopped"


@dataclass(frozen=True, slots=True)
class Scale:
    """Raise a role of a set to ``count`` pods; the set is created where there is none."""

    revision: str
    role: SetRole
    count: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Lower a role of a set to ``count`` pods: those that go leave routing, finish, outlive leases, and stop."""

    revision: str
    role: SetRole
    count: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Put exactly these sets behind the Service."""

    revisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete the objects of a set that has no pod."""

    revision: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done until ``what`` has happened. ``bounded`` waits are ended by the progress deadline."""

    what: Literal["ready", "verified", "drained", "resumed", "room", "undone", "asked for"]
    reason: Reason
    message: str
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Insufficient:
    """The budget allows a next step and the devices do not; nothing is changed."""

    needed: int
    free: int
    message: str
    reason: Reason = Reason.INSUFFICIENT_CAPACITY


@dataclass(frozen=True, slots=True)
class Fail:
    """The rollout to ``revision`` has failed. To be recorded, so that the next observation has it."""

    revision: str
    message: str
    reason: Reason = Reason.ROLLOUT_FAILED


Change = Scale | Drain | Switch | Remove
Decision = Change | Wait | Insufficient | Fail


@dataclass(frozen=True, slots=True)
class Step:
    """One step: changes that may be applied in any order, all or some of them; or what is waited for."""

    phase: Phase
    decisions: tuple[Decision, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """What is to be done."""
        return tuple(d for d in self.decisions if isinstance(d, (Scale, Drain, Switch, Remove)))
