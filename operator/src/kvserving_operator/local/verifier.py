"""Verification of a running service, as the supervisor and ``kvserving verify`` call it."""

from __future__ import annotations

from pathlib import Path

from . import usersecrets
from .errors import LocalError
from .state import State
from .supervisor import Verification


async def verify(state: State) -> Verification:
    """Send the probes that prove the transfer of the service in ``state``."""
    from ..verify import verify_local

    if not any(Path(state.directory, "secrets").glob("*/signing")):
        raise LocalError(
            f"the signing key of {state.name} is gone from {state.directory}/secrets: stop the service with"
            f" `kvserving down {state.name}` and bring it up again"
        )
    key = usersecrets.read(state.api_key_secret, ("api-key",))["api-key"] if state.api_key_secret else None
    return await verify_local(state.as_dict(), api_key=key)
