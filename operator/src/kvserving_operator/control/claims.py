"""Claims as far as decisions need them: which of those that a pod mounts have no volume, and the way out. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..plan.claim_sources import claim_source
from ..reasons import Reason

_KIND = "PersistentVolumeClaim"
# As the scheduler words it.
_UNBOUND = ("unbound immediate PersistentVolumeClaims", "didn't find available persistent volumes to bind")
_LOST = re.compile(r'persistentvolumeclaim "([^"]*)" bound to non-existent persistentvolume "([^"]*)"')
_GOES = re.compile(r'persistentvolumeclaim "([^"]*)" is being deleted')
_MISSING = re.compile(r'persistentvolumeclaim "([^"]*)" not found')


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was last seen: its phase, empty where it is new, and its class as it is stored, empty without."""

    phase: str
    storage_class: str

    @property
    def bound(self) -> bool:
        """Whether it has its volume."""
        return self.phase == "Bound"


@dataclass(frozen=True)
class Claims:
    """The claims that the operator made for the object called ``name``, and the object's spec as it is stored, which
    says where the others come from."""

    name: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Claim] = field(default_factory=dict)

    def blamed(self, mounted: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the claims that a pod has ``mounted`` which may be without a volume, by what is known: claims that
        the operator made, else those of others, which it does not watch."""
        made = tuple(claim for claim in mounted if claim in self.made and not self.made[claim].bound)
        return made or tuple(claim for claim in mounted if claim not in self.made)

    def unbound(self, blamed: tuple[str, ...]) -> str:
        """What the claims of ``blamed`` lack and the way out, in one sentence without its end."""
        if not blamed:
            return "no volume is bound to a claim that it mounts: `kubectl get pvc` shows which"
        return "; ".join(map(self._told, blamed)) if len(blamed) == 1 or self._ours(blamed) else self._one_of(blamed)

    def _ours(self, blamed: tuple[str, ...]) -> bool:
        return all(claim in self.made for claim in blamed)

    def _told(self, claim: str) -> str:
        named = claim_source(claim, self.name, self.spec)
        if claim not in self.made:
            where = f" ({named})" if named else ""
            way = "give it a storage class that makes one, or create the volume"
            return f"no volume is bound to claim {claim}{where}: {way}"
        kept = self.made[claim].storage_class
        told = f"storage class {kept}" if kept else "no storage class, and the cluster has no default"
        way = f"create that class or a volume of it, or name another in {named}" if kept else f"name one in {named}"
        return f"no volume is bound to claim {claim} ({told}): {way} and delete the claim, which is then made anew"

    def _one_of(self, blamed: tuple[str, ...]) -> str:
        told = ((claim, claim_source(claim, self.name, self.spec)) for claim in blamed)
        shown = ", ".join(f"{claim} ({named})" if named else claim for claim, named in told)
        return (
            f"no volume is bound to one of the claims {shown}: `kubectl get pvc` shows which; give it a storage class "
            "that makes one, or create the volume"
        )


def of_body(body: Mapping[str, Any], kind: str) -> Claim | None:
    """Return a claim trimmed from what the apiserver sent; ``None`` for another kind."""
    if kind != _KIND:
        return None
    spec, status = body.get("spec") or {}, body.get("status") or {}
    return Claim(str(status.get("phase") or ""), str(spec.get("storageClassName") or ""))


def lacking(pod: str, said: str, mounted: tuple[str, ...], claims: Claims) -> tuple[Reason, str] | None:
    """What the claims of ``pod`` lack, where by the scheduler's sentence it has no node because of them."""
    if (lacks := _MISSING.search(said)) is not None:
        message = f"claim {lacks[1]} is not there: create it in this namespace, or name the one that is"
        return Reason.CLAIM_MISSING, f"{message} (that of a model by spec.model.uri)"
    if (goes := _GOES.search(said)) is not None:
        return Reason.CLAIM_MISSING, f"claim {goes[1]} is being deleted: create it anew when it is gone"
    if (lost := _LOST.search(said)) is not None:
        message = f"claim {lost[1]} is lost: its volume {lost[2]} is gone; delete the claim and create it anew"
        return Reason.CLAIM_UNBOUND, message
    if any(sentence in said for sentence in _UNBOUND):
        return Reason.CLAIM_UNBOUND, f"pod {pod}: {claims.unbound(claims.blamed(mounted))} ({said})"
    return None
