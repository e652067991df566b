"""Verification of a running service, as the supervisor and ``kvserving verify`` call it."""

from __future__ import annotations

from . import usersecrets
from .errors import LocalError
from .state import State
from .supervisor import Verification


async def verify(state: State) -> Verification:
    """Send the probes that prove the transfer of the service in ``state``."""
    from ..verify import verify_local

    key = usersecrets.read(state.api_key_secret, ("api-key",))["api-key"] if state.api_key_secret else None
    try:
        return await verify_local(state.as_dict(), api_key=key)
    except FileNotFoundError as error:
        raise LocalError(
            f"the signing key of {state.name} is gone from {error.filename}: stop the service with"
            f" `kvserving down {state.name}` and bring it up again"
        ) from error
