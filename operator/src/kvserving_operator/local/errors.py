"""Outcomes that end a command, each with its exit status."""

from __future__ import annotations

from collections.abc import Sequence

from ..listing import some

MOST_NAMES = 10
"""Names that a message lists; of more it says how many there are."""


class LocalError(Exception):
    """The answer is no: something that ran failed. The message is for the user; exit status 1."""

    exit_status = 1


class NoSuchService(LocalError):
    """No service of that name is on this machine."""


class EnvironmentFault(LocalError):
    """This machine cannot run the service as it is; nothing was started. Exit status 3.

    ``problems`` holds one text per fault, each with the reason and the way out.
    """

    exit_status = 3

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class NoSuchKey(EnvironmentFault):
    """A Secret of the user, or the key wanted of it, is not on this machine: no fault where it is optional."""


class ManifestFault(LocalError):
    """A pod template asks for something that a process on this machine cannot have."""


UP = "`kvserving up FILE` brings one up"
"""The way out where a service of this machine is asked for that is not there."""


def there_are(names: Sequence[str]) -> str:
    """The end of a message about a name that is not there: those that are, the first of many."""
    return f"there are: {some(names, MOST_NAMES) or 'none'}"
