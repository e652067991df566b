"""Before anything is watched: is the CRD there, which optional kinds are, and may the operator do its work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ..api.v1alpha1 import API_VERSION, KIND
from .config import Config
from .failures import ApiFailure, describe
from .kube import Kube
from .permissions import CHILDREN, TABLE, Resource

log = logging.getLogger(__name__)

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_AT_ONCE = 16


class CrdMissing(Exception):
    """The cluster has no ``KVServing``; the message says how to install it."""


class PermissionsMissing(Exception):
    """The operator lacks verbs; ``missing`` names each as ``verb resource (namespace)``."""

    def __init__(self, missing: Iterable[str]) -> None:
        self.missing = tuple(missing)
        by_resource: dict[str, list[str]] = {}
        for entry in self.missing:
            verb, _, resource = entry.partition(" ")
            by_resource.setdefault(resource, []).append(verb)
        listed = "\n".join(f"  {', '.join(verbs)} {resource}" for resource, verbs in by_resource.items())
        super().__init__(
            f"the operator lacks {len(self.missing)} permissions:\n{listed}\n"
            "grant them (python -m kvserving_operator.control.permissions --print shows the RBAC objects)"
        )


class KindDeleted(Exception):
    """Kinds that the operator watched are no longer there, ``gone`` as (apiVersion, kind)."""

    def __init__(self, gone: Iterable[tuple[str, str]]) -> None:
        self.gone = tuple(sorted(gone))
        named = ", ".join(f"{kind} ({version})" for version, kind in self.gone)
        super().__init__(
            f"the CRD of {named} was deleted while the operator watched it: the operator ends. "
            + (
                f"Every {KIND} and all that was made for it went with it: apply the CRDs (kubectl apply --server-side "
                "-f crds/), then the objects anew; the operator starts when they are there"
                if (API_VERSION, KIND) in self.gone
                else "It starts again without it; install the CRD again where objects need it"
            )
        )


@dataclass(frozen=True)
class Installed:
    """Which of the kinds in the table the cluster has: (apiVersion, kind)."""

    present: frozenset[tuple[str, str]]
    absent: frozenset[tuple[str, str]]

    @property
    def optional_kinds(self) -> frozenset[str]:
        """Names of the optional kinds that are there, for the plan."""
        return frozenset(r.kind for r in CHILDREN if r.optional and (r.api_version, r.kind) in self.present)


async def installed(kube: Kube) -> Installed:
    """Look which kinds the cluster has. Raises ``CrdMissing`` or ``ApiFailure``."""
    versions = sorted({resource.api_version for resource in (*CHILDREN,)} | {API_VERSION})
    found = await asyncio.gather(*(kube.read(_discovery(version)) for version in versions))
    present = {
        (version, str(entry.get("kind")))
        for version, document in zip(versions, found, strict=True)
        for entry in (document or {}).get("resources") or ()
        if "/" not in str(entry.get("name"))
    }
    if (API_VERSION, KIND) not in present:
        raise CrdMissing(
            f"the cluster has no {KIND} ({API_VERSION}): apply the CRDs first (kubectl apply --server-side -f crds/)"
        )
    kinds = {(resource.api_version, resource.kind) for resource in CHILDREN}
    return Installed(frozenset(kinds & present), frozenset(kinds - present))


async def gone(kube: Kube, before: Installed) -> frozenset[tuple[str, str]]:
    """Which kinds that were there ``before`` the cluster has no more; none where that is not answered."""
    try:
        return before.present - (await installed(kube)).present
    except CrdMissing:
        return frozenset({(API_VERSION, KIND)})
    except ApiFailure as failure:
        log.warning("which kind is gone is not known: %s", describe(failure))
        return frozenset()


async def check(kube: Kube, config: Config, kinds: Installed) -> None:
    """Ask the apiserver for every verb of the table. Raises ``PermissionsMissing`` or ``ApiFailure``."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(resource: Resource, verb: str, namespace: str) -> str | None:
        plural, _, subresource = resource.plural.partition("/")
        attributes = {
            "group": resource.group,
            "resource": plural,
            "subresource": subresource,
            "verb": verb,
            "namespace": namespace,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        async with limit:
            answer = await kube.post(_REVIEWS, review)
        if (answer.get("status") or {}).get("allowed"):
            return None
        return f"{verb} {resource.full_name} ({f'in namespace {namespace}' if namespace else 'in all namespaces'})"

    questions = [
        ask(resource, verb, namespace)
        for resource in TABLE
        if (resource.api_version, resource.kind) not in kinds.absent
        and (resource.scope == "served" or config.election.enabled)
        for namespace in ((config.namespace,) if resource.scope == "own" else config.namespaces or ("",))
        for verb in resource.verbs
    ]
    missing = [entry for entry in await asyncio.gather(*questions) if entry is not None]
    if missing:
        raise PermissionsMissing(missing)


async def look_for_namespaces(kube: Kube, config: Config) -> None:
    """Warn of namespaces that are to be served and do not exist. Raises ``ApiFailure`` when there is no answer.

    A dry run of an event tells: the right to read namespaces is not needed for it.
    """
    for namespace in config.namespaces:
        try:
            await kube.try_event(namespace)
        except ApiFailure as failure:
            if failure.status != 404:
                raise
            log.warning("namespace %s (--namespace) does not exist; it is served as soon as it does", namespace)


def _discovery(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
