"""The marks of command blocks: an HTML comment on the line before the fence says which lane runs the block.

<!-- run: LANE -->                        unit, local, cluster or gpu; ci: .ci/run calls each of its commands
<!-- run: LANE; NAME=tiny; output -->     NAME in its commands stands for tiny; what is printed is as shown
<!-- not run: REASON -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LANES = ("unit", "local", "cluster", "gpu", "ci")
WAY_OUT = (
    f"write `<!-- run: LANE -->` on the line before the fence, where LANE is one of {', '.join(LANES)} and runs its "
    "commands, or `<!-- not run: REASON -->`"
)
COMMANDS = frozenset({"console"})
"""The languages of blocks that hold commands."""


@dataclass(frozen=True)
class Run:
    """A block that is run: ``values`` replace words in its commands, ``output`` has what they print compared."""

    lane: str
    values: Mapping[str, str] = field(default_factory=dict)
    output: bool = False


@dataclass(frozen=True)
class NotRun:
    """A block that no test runs, and why."""

    reason: str


def parse(mark: str) -> Run | NotRun | None:
    """Return what a mark says; ``None`` for an empty one. Raises ``ValueError`` for one that says nothing known."""
    kind, colon, rest = mark.partition(":")
    if not mark:
        return None
    if colon and kind == "not run":
        if not rest.strip():
            raise ValueError("a block that is not run needs a reason: <!-- not run: REASON -->")
        return NotRun(rest.strip())
    if not colon or kind != "run":
        raise ValueError(f"the mark {mark!r} is neither `run: LANE` nor `not run: REASON`")
    lane, *options = (part.strip() for part in rest.split(";"))
    if lane not in LANES:
        raise ValueError(f"the mark {mark!r} names no lane; there are {', '.join(LANES)}")
    values = {}
    for option in options:
        name, equal, value = option.partition("=")
        if equal and name and value:
            values[name] = value
        elif option != "output":
            raise ValueError(f"the mark {mark!r} has {option!r}, which is neither `output` nor NAME=value")
    return Run(lane, values, "output" in options)


def replaced(command: str, values: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return a command with ``values`` in place of their names, and the names that it has."""
    found = set()
    for name, value in values.items():
        pattern = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
        command, count = re.subn(pattern, value.replace("\\", r"\\"), command)
        if count:
            found.add(name)
    return command, found
