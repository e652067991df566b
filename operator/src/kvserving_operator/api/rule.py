"""One validation rule: a CEL expression and the words for the user.

The same rule is rendered into the CRD (``api.schema``), where the apiserver evaluates it,
and evaluated in this process (``api.rules``), so both refuse the same objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map", "matches", "startsWith", "size", "split"})


@dataclass(frozen=True)
class Rule:
    """A rule at one place of the object.

    ``name`` identifies the rule at that place. ``at`` is the path whose value is ``self``
    (``[*]`` stands for every entry of a list, an empty path for the whole object); the rule
    applies only where that value is present. ``cel`` is true for a correct object.
    ``message`` states reason and way out; ``message_cel``, where given, is an expression
    that yields the same with values. ``field`` is the field to blame, relative to ``at``.
    Where that is a list, ``element`` is the RE2 pattern of the entry to blame: this process
    names its position, the apiserver the list.
    """

    name: str
    at: str
    cel: str
    message: str
    message_cel: str | None = None
    field: str | None = None
    element: str | None = None

    @property
    def id(self) -> str:
        """Place and name, unique among all rules."""
        return f"{self.at or 'object'}: {self.name}"

    @property
    def blames(self) -> str:
        """Path of the field that a violation is reported for; may hold ``[*]``."""
        return ".".join(part for part in (self.at, self.field) if part)

    @property
    def message_expression(self) -> str | None:
        """``message_cel`` where the apiserver can bound its cost, which it cannot for text made of
        numbers and for entries picked from a list; it shows ``message`` there."""
        if self.message_cel is None or any(call in self.message_cel for call in ("string(", ".filter(")):
            return None
        return self.message_cel

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Paths that the expression looks at; may hold ``[*]``."""
        chains = set()
        for chain in re.findall(r"\bself((?:\.[A-Za-z_0-9]+)*)", self.cel):
            fields = []
            for part in chain.split(".")[1:]:
                if part in _MACROS:
                    break
                fields.append(part)
            chains.add(".".join(part for part in (self.at, *fields) if part))
        return tuple(sorted(chains))
