"""Settings of the connector, from the environment that the operator or the executor renders."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from kvserving_connector.core.policy import Role
from kvserving_connector.core.signing import Keys, is_revision

logger = logging.getLogger("vllm.kvserving")

DEFAULT_LEASE_SECONDS = 30


@dataclass(frozen=True)
class Settings:
    """What the environment says. ``role`` is None when ``KVSERVING_ROLE`` is not set."""

    role: Role | None
    revision: str
    lease_seconds: int
    key_file: str
    bind_address: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``KVSERVING_*`` variables.

        Raises ValueError naming the variable for a role, revision or lease that cannot be understood: an engine that
        guesses its role would accept what it must refuse.
        """
        source = os.environ if environment is None else environment
        role = source.get("KVSERVING_ROLE", "")
        if role and role not in list(Role):
            raise ValueError(
                f"KVSERVING_ROLE={role!r} is not a role; set it to one of {', '.join(sorted(Role))} or leave it unset"
            )
        revision = source.get("KVSERVING_REVISION", "")
        if revision and not is_revision(revision):
            raise ValueError(f"KVSERVING_REVISION={revision!r} must be 1 to 128 of A-Z a-z 0-9 . _ -")
        lease = source.get("KVSERVING_LEASE_SECONDS", "") or str(DEFAULT_LEASE_SECONDS)
        if not lease.isascii() or not lease.isdigit() or int(lease) < 1:
            raise ValueError(f"KVSERVING_LEASE_SECONDS={lease!r} must be a whole number of seconds, at least 1")
        return cls(
            role=Role(role) if role else None,
            revision=revision,
            lease_seconds=int(lease),
            key_file=source.get("KVSERVING_SIGNING_KEY_FILE", ""),
            bind_address=source.get("KVSERVING_BIND_ADDRESS", ""),
        )


class KeyFile:
    """The signing keys as the key file holds them now: read again when the file changes, so keys can be rotated.

    A missing or unusable file gives empty keys, with one log line per change of state; the keys are never logged.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys = Keys()
        self._complaint = ""

    def current(self) -> Keys:
        """Return the keys; empty when there are none to use."""
        if not self._path:
            return self._none("KVSERVING_SIGNING_KEY_FILE is not set")
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._seen:
                with open(self._path, encoding="ascii") as file:
                    self._keys = Keys.parse(file.read())
                self._seen = stamp
                self._complaint = ""
        except OSError as error:
            return self._none(f"the signing key file {self._path} cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            return self._none(f"the signing key file {self._path} is not ASCII text")
        except ValueError as error:
            return self._none(f"the signing key file {self._path} is unusable: {error}")
        return self._keys

    def _none(self, complaint: str) -> Keys:
        if complaint != self._complaint:
            logger.error(
                "KVServing: %s. Nothing is signed and every handoff is refused: requests still work, decode recomputes "
                "their prompts. Mount the service's key and set KVSERVING_SIGNING_KEY_FILE to it.",
                complaint,
            )
            self._complaint = complaint
        self._keys, self._seen = Keys(), None
        return self._keys
