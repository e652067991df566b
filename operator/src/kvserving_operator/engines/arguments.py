"""vLLM's command line: finding flags in what users wrote.

vLLM accepts ``--a-b`` and ``--a_b``, values after ``=`` or as the next argument, nested
values as ``--a-b.c value`` and any unambiguous beginning of a flag. A flag that belongs to
the operator has to be found in each of these forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dcp": "--decode-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-ac": "--attention-config",
    "-sc": "--speculative-config",
    "-n": "--nnodes",
    "-r": "--node-rank",
}


@dataclass(frozen=True)
class Flag:
    """One flag as the user wrote it.

    ``name`` is the normal form (``--a-b``), ``sub`` the rest of a dotted one (``c.d``),
    ``values`` what followed, ``start`` and ``end`` the half-open range in the arguments.
    """

    name: str
    sub: str | None
    values: tuple[str, ...]
    start: int
    end: int

    @property
    def value(self) -> str | None:
        """The first value, or None for a switch."""
        return self.values[0] if self.values else None

    def json(self) -> dict[str, Any] | None:
        """The value as a JSON object; None when it is none. A dotted flag yields its nested form."""
        if self.sub is not None:
            nested: Any = self.value
            for key in reversed(self.sub.split(".")):
                nested = {key: nested}
            return dict(nested)
        try:
            parsed = json.loads(self.value or "")
        except ValueError:
            return None
        return parsed if isinstance(parsed, dict) else None


def parse(args: Sequence[str]) -> tuple[Flag, ...]:
    """Every flag in ``args``, in order. Arguments that follow no flag are ignored."""
    flags: list[Flag] = []
    index = 0
    while index < len(args):
        start, word = index, args[index]
        index += 1
        if not _is_flag(word):
            continue
        key, equals, joined = word.partition("=")
        values = [joined] if equals else []
        while not equals and index < len(args) and not _is_flag(args[index]):
            values.append(args[index])
            index += 1
        name, sub = _normal(key)
        flags.append(Flag(name, sub, tuple(values), start, index))
    return tuple(flags)


def find(args: Sequence[str], name: str) -> tuple[Flag, ...]:
    """The flags of ``args`` that vLLM would take for ``name`` (normal form)."""
    return tuple(flag for flag in parse(args) if stands_for(flag.name, (name,)) == name)


def stands_for(written: str, owned: Iterable[str]) -> str | None:
    """The flag of ``owned`` that ``written`` names, whole or by its beginning; None if there is none.

    vLLM takes any beginning that no other flag shares; a shared one stops it at once.
    """
    names = set(owned)
    if written in names:
        return written
    if len(written) <= len("--"):
        return None
    return min((name for name in names if name.startswith(written)), default=None)


def positive(name: str) -> str:
    """The flag that a switch's ``--no-…`` form turns off; other names as they are."""
    return "--" + name.removeprefix("--no-") if name.startswith("--no-") else name


def last_value(args: Sequence[str], name: str) -> str | None:
    """The value that wins for ``name``: the last one given. A switch counts as ``"true"``."""
    found = find(args, name)
    if not found:
        return None
    flag = found[-1]
    return flag.value if flag.values else "true"


def without(args: Sequence[str], name: str) -> tuple[str, ...]:
    """``args`` without each occurrence of ``name`` and its values."""
    dropped = {index for flag in find(args, name) for index in range(flag.start, flag.end)}
    return tuple(word for index, word in enumerate(args) if index not in dropped)


def _is_flag(word: str) -> bool:
    return (word.startswith("--") and len(word) > 2) or word.split("=", 1)[0] in SHORT


def _normal(key: str) -> tuple[str, str | None]:
    if key in SHORT:
        return SHORT[key], None
    head, dot, sub = key.partition(".")
    return "--" + re.sub("_", "-", head[2:]), sub if dot else None
