"""How the operator's process ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How the process ends. 2 is left to the command line: wrong usage."""

    STOPPED = 0
    """A signal asked it to."""
    FAILED = 1
    """A watch or another part failed for good; the log says which. A restart may help."""
    PERMISSIONS = 3
    """Verbs are missing; the log names each."""
    LEASE_LOST = 4
    """Another operator may write now. A restart is right."""
    CLUSTER = 5
    """The apiserver cannot be reached, or the CRD is not installed."""
