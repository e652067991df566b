"""Verification of a running service, as the supervisor and ``kvserving verify`` call it."""

from __future__ import annotations

from . import usersecrets
from .state import State
from .supervisor import Verification


async def verify(state: State) -> Verification:
    """Send the probes that prove the transfer of the service in ``state``."""
    from ..verify import verify_local

    key = usersecrets.read(state.api_key_secret, ("api-key",))["api-key"] if state.api_key_secret else None
    return await verify_local(state.as_dict(), api_key=key)
