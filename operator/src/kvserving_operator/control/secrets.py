"""Secrets that the operator makes: created once with random values, never written again, never listed."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ..plan import labels
from ..plan.types import GeneratedSecret
from ..reasons import Reason
from .apply import Outcome
from .children import OTHER_NAME, owner_reference
from .failures import ApiFailure, Problem, problem
from .kube import Kube
from .observe import Key, Serving
from .owners import controller_of
from .pauses import spread
from .permissions import SECRETS

log = logging.getLogger(__name__)

_TRUSTED_SECONDS = 60.0
_BETWEEN_LOOKS = 0.1
"""Seconds: the apiserver gets ten reads a second of this, however many objects there are."""

Needed = tuple[str, frozenset[str]]
"""Where the spec names a Secret, and the keys that pods need of it."""


class SecretKeeper:
    """Sees to it that generated Secrets exist. ``now`` is a monotonic clock in seconds."""

    def __init__(self, kube: Kube, now: Callable[[], float]) -> None:
        self._kube = kube
        self._now = now
        self._seen: dict[tuple[str, str], float] = {}
        self._ensured: dict[tuple[str, str], Key] = {}

    async def ensure(self, serving: Serving, wanted: tuple[GeneratedSecret, ...], outcome: Outcome) -> None:
        """Create those of ``wanted`` that do not exist; note writes and problems in ``outcome``.

        One that exists is left as it is. It is a problem when it belongs to something else or lacks a key.
        """
        for secret in wanted:
            known = (serving.uid, secret.name)
            if self._now() - self._seen.get(known, -_TRUSTED_SECONDS) < _TRUSTED_SECONDS:
                continue
            try:
                found = await self._ensure_one(serving, secret, outcome)
            except ApiFailure as failure:
                found = problem(failure)
            if found is None:
                self._seen[known] = self._now()
                self._ensured[known] = serving.key
            else:
                outcome.problems["Secret", secret.name] = found

    async def look_for(self, serving: Serving, needed: Mapping[str, Needed], outcome: Outcome) -> None:
        """Note in ``outcome`` which Secrets of the user's are not there, or lack a key.

        ``needed`` has by name where the spec names it, and the keys that pods need.
        """
        for name, (named, keys) in needed.items():
            try:
                live = await self._kube.get(SECRETS, serving.key.namespace, name)
            except ApiFailure as failure:
                outcome.problems["Secret", name] = problem(failure)
                continue
            where = f"Secret {serving.key.namespace}/{name} ({named})"
            if live is None:
                message = f"{where} is not there: create it{_with(keys)}"
            elif missing := keys - set(live.get("data") or {}):
                message = f"{where} lacks {', '.join(sorted(missing))}: add it"
            else:
                continue
            outcome.problems["Secret", name] = Problem(Reason.SECRET_MISSING, message, retry_after=5.0)

    async def watch(self, interval: float, enqueue: Callable[[Key], None]) -> None:
        """See ``interval`` seconds after each look, for ever, whether what was made is there; ``enqueue`` whose is not.

        No watch tells of it: the operator may not list Secrets.
        """
        while True:
            await asyncio.sleep(spread(interval))
            await self.look(enqueue)

    async def look(self, enqueue: Callable[[Key], None]) -> None:
        """See once whether what was made is still there; ``enqueue`` the objects whose Secrets are not."""
        for number, ((uid, name), key) in enumerate(list(self._ensured.items())):
            if number:
                await asyncio.sleep(_BETWEEN_LOOKS)
            try:
                gone = await self._kube.get(SECRETS, key.namespace, name) is None
            except ApiFailure as failure:
                log.debug("Secret %s/%s was not looked at: %s", key.namespace, name, failure)
                continue
            if gone and (uid, name) in self._ensured:
                self.doubt(uid)
                enqueue(key)

    def forget(self, uid: str) -> None:
        """Drop everything about the object ``uid``."""
        self.doubt(uid)
        for known in [known for known in self._ensured if known[0] == uid]:
            del self._ensured[known]

    def doubt(self, uid: str) -> None:
        """Look again at the Secrets of the object ``uid`` when they are next asked for."""
        for known in [known for known in self._seen if known[0] == uid]:
            del self._seen[known]

    async def read(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return the text values of one Secret, ``None`` when there is none. Raises ``ApiFailure``."""
        body = await self._kube.get(SECRETS, namespace, name)
        return None if body is None else _decoded(body)

    async def _ensure_one(self, serving: Serving, secret: GeneratedSecret, outcome: Outcome) -> Problem | None:
        namespace = serving.key.namespace
        live = await self._kube.get(SECRETS, namespace, secret.name)
        if live is None:
            try:
                await self._kube.create(SECRETS, _body(serving, secret))
                outcome.writes += 1
                if (serving.uid, secret.name) in self._ensured:
                    outcome.remade.append(secret.name)
                log.info("created Secret %s/%s", namespace, secret.name)
                return None
            except ApiFailure as failure:
                if failure.status != 409:
                    raise
            live = await self._kube.get(SECRETS, namespace, secret.name)
        return _judge(serving, secret, live or {"metadata": {}})


def _judge(serving: Serving, secret: GeneratedSecret, live: Mapping[str, Any]) -> Problem | None:
    where = f"Secret {serving.key.namespace}/{secret.name}"
    owner = controller_of(live["metadata"])
    if owner is None or owner.uid != serving.uid:
        if "deletionTimestamp" in live["metadata"] or (owner is not None and owner.name == serving.key.name):
            message = f"{where} was left by an object that had this name before: waiting for its deletion"
            return Problem(Reason.WAITING_FOR_DELETION, message, retry_after=1.0)
        whose = "no controller" if owner is None else f"{owner.kind} {owner.name}"
        message = f"{where} exists and belongs to {whose}: it is left alone; {OTHER_NAME.format(name=serving.key.name)}"
        return Problem(Reason.OWNED_BY_OTHER, message, retry_after=1.0)
    missing = sorted(set(secret.keys) - set(live.get("data") or {}))
    if missing:
        message = f"{where} lacks {', '.join(missing)}: delete it, and it is made anew"
        return Problem(Reason.SECRET_MISSING, message, retry_after=5.0)
    return None


def _with(keys: frozenset[str]) -> str:
    return f" with {', '.join(sorted(keys))}" if keys else ""


def _body(serving: Serving, secret: GeneratedSecret) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret.name,
            "namespace": serving.key.namespace,
            "labels": labels.object_labels(serving.key.name),
            "ownerReferences": [owner_reference(serving)],
        },
        "type": "Opaque",
        "stringData": {key: secrets.token_hex(size) for key, size in secret.keys.items()},
    }


def _decoded(body: Mapping[str, Any]) -> dict[str, str]:
    return {key: base64.b64decode(value).decode("utf-8", "replace") for key, value in (body.get("data") or {}).items()}
