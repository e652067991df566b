"""A signal that ends what takes minutes: it is heeded where a break is safe, and waits everywhere else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from e2e.controlplane.commands import SIGNALS


class Ended(BaseException):
    """A signal broke the work off. It is no ``Exception``: what cleans up runs, what reports failures does not."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"ended by {number.name}")
        self.number = number


def hold() -> None:
    """Let ``SIGNALS`` wait from now on, until ``breakable`` or ``signal.sigwait`` takes them. In the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


@contextmanager
def breakable() -> Iterator[None]:
    """Break the block off with ``Ended`` on the first of ``SIGNALS``, also on one that waits already.

    Further ones do not disturb what cleans up. In the main thread, between ``hold`` and its end.
    """
    heeded = True

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal heeded
        if heeded:
            heeded = False
            raise Ended(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        heeded = False
        for number, handler in before.items():
            signal.signal(number, handler)
