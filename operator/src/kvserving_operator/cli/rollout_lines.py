"""What ``rollout status`` prints while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from ..doctor.findings import shown
from .rollout_progress import HEAD, Standing
from .summary import print_table

QUIET_SECONDS = 30.0
"""How long nothing may be printed: whoever waits for engines to load sees that the command does, too."""


class Lines:
    """Prints what is new: a line, the table of sets where it is another, and now and then that nothing is.

    Where what is waited for may never come, what ``way_out`` says of it is told with the first of the latter.
    ``clock`` is in seconds.
    """

    def __init__(self, way_out: Callable[[Standing], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._way_out = way_out
        self._clock = clock
        self._message = ""
        self._sets: tuple[tuple[str, ...], ...] = ()
        self._since = self._said = clock()

    def __call__(self, found: Standing) -> None:
        """Tell of the rollout as it stands now."""
        now = self._clock()
        if found.sets not in (self._sets, ()):
            print_table(HEAD, found.sets)
            self._since = self._said = now
        if not found.over and found.message != self._message:
            click.echo(shown(found.message))
            self._since = self._said = now
        elif not found.over and now - self._said >= QUIET_SECONDS:
            click.echo(f"unchanged for {now - self._since:.0f} s")
            if found.troubled and self._said == self._since:
                click.echo(shown(self._way_out(found)))
            self._said = now
        # Ends the command where nobody reads what it prints.
        click.echo("", nl=False)
        self._message, self._sets = found.message, found.sets
