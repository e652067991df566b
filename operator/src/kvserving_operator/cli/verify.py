"""``kvserving verify``: prove again that KV moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..local.state import State
    from ..local.supervisor import Verification
    from .view import View

_FIRST_QUIET_SECONDS = 3.0
"""Seconds after which it is said what is waited for."""
_QUIET_SECONDS = 30.0
"""As that, from then on."""


@click.command("verify")
@click.argument("service", metavar="NAME|FILE")
def command(service: str) -> int:
    """Send probes through the engines and the router of a service; exit status 1 and the reason when KV did not move.

    An engine that takes connections and does not answer is given a minute for each of two requests.
    """
    from .platform import require_linux

    require_linux()
    from ..local import client
    from ..local.errors import LocalError, NoSuchService
    from ..local.state import STARTING, STOPPING
    from ..local.verifier import verify
    from .names import service_name
    from .view import progress, waited_for

    name = service_name(service)
    try:
        state = client.running(name)
    except NoSuchService as missing:
        raise NoSuchService(f"{missing}. `kubectl kvserving verify {name}` proves an object of a cluster") from None
    if state.phase in (STARTING, STOPPING):
        awaited = waited_for(state) or "the verification"
        raise LocalError(f"{name} is {state.phase}, so nothing can be verified now: waiting for {awaited}")
    with progress(name) as view:
        outcome = asyncio.run(_told(verify(state), f"waiting for the probes through {_through(state)}", view))
    if outcome.ok != bool(state.verification and state.verification["ok"]):
        client.check_again(state)
    for line in outcome.lines():
        click.echo(line)
    return 0 if outcome.ok else 1


async def _told(verification: Awaitable[Verification], awaited: str, view: View) -> Verification:
    """The outcome; what is waited for is said after some seconds, and every half minute."""
    running = asyncio.ensure_future(verification)
    patience = _FIRST_QUIET_SECONDS
    while not (await asyncio.wait({running}, timeout=patience))[0]:
        view.step(awaited)
        patience = _QUIET_SECONDS
    return running.result()


def _through(state: State) -> str:
    """The pods that the probes need, those that are not ready with their phase."""
    pods = [pod for pod in state.pods if pod.role != "store"]
    return ", ".join(pod.name if pod.ready else f"{pod.name} ({pod.phase})" for pod in pods)
