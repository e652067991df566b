"""Names of child objects: DNS labels that are stable, distinct and at most 63 characters long."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..api.v1alpha1 import RoleName

LONGEST_BASE = 40
# A StatefulSet's name and a hash of its template are one label of its pods: 52 characters. Those of a
# LeaderWorkerSet's groups add the number of the group, up to 9999, to its name.
_LONGEST_GROUPS = 47


def base_name(name: str) -> str:
    """``name`` as the beginning of every child's name.

    Unchanged where it is a DNS label that starts with a letter. Otherwise dots become
    dashes, a digit in front gets a letter before it, and five digits of a hash keep two
    objects apart whose names differ only there.
    """
    label = name.replace(".", "-")
    if not label[0].isalpha():
        label = f"kv-{label}"
    if label == name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:5]
    return f"{label[: LONGEST_BASE - 6].rstrip('-')}-{digest}"


@dataclass(frozen=True)
class Names:
    """The names of one object's children in one revision."""

    base: str
    revision: str

    @property
    def short(self) -> str:
        """The part of the revision that names carry: 8 digits."""
        return self.revision[:8]

    def engines(self, role: RoleName) -> str:
        """Deployment of a role."""
        return f"{self.base}-{role}-{self.short}"

    def groups(self, role: RoleName) -> str:
        """LeaderWorkerSet of a role whose engines span nodes; a long name is cut and keeps five digits of a hash."""
        ending = f"-{role}-{self.short}"
        longest = _LONGEST_GROUPS - len(ending)
        if len(self.base) <= longest:
            return f"{self.base}{ending}"
        digest = hashlib.sha256(self.base.encode()).hexdigest()[:5]
        return f"{self.base[: longest - 6].rstrip('-')}-{digest}{ending}"

    def scale(self, role: RoleName) -> str:
        """What scalers of a role act on; the same in every revision."""
        return f"{self.base}-{role}"

    @property
    def router(self) -> str:
        """Deployment of the router."""
        return f"{self.base}-router-{self.short}"

    @property
    def router_account(self) -> str:
        """ServiceAccount, Role and RoleBinding of the router."""
        return f"{self.base}-router"

    @property
    def service(self) -> str:
        """Service in front of the router."""
        return self.base

    @property
    def launcher(self) -> str:
        """ConfigMap with the router's launcher."""
        return f"{self.base}-router-launcher"

    @property
    def keys(self) -> str:
        """Secret with the keys that the operator makes."""
        return f"{self.base}-keys"

    @property
    def store(self) -> str:
        """StatefulSet, Service and Secret of the store that the operator deploys."""
        return f"{self.base}-store"

    @property
    def l2_claim(self) -> str:
        """Claim of a filesystem store."""
        return f"{self.base}-l2"

    @property
    def model_claim(self) -> str:
        """Claim that keeps model weights."""
        return f"{self.base}-model"

    @property
    def mooncake(self) -> str:
        """ConfigMap with the Mooncake client's settings."""
        return f"{self.base}-mooncake"

    @property
    def engine_policy(self) -> str:
        """Network policy of one revision's engines."""
        return f"{self.base}-engines-{self.short}"

    @property
    def history(self) -> str:
        """ConfigMap with the spec of one revision."""
        return f"{self.base}-spec-{self.short}"

    @property
    def engine_monitor(self) -> str:
        """PodMonitor of the engines."""
        return f"{self.base}-engines"
