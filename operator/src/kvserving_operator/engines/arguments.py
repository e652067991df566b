"""vLLM's command line: finding flags in what users wrote.

vLLM accepts ``--a-b`` and ``--a_b``, values after ``=`` or as the next argument, nested
values as ``--a-b.c value`` and any unambiguous beginning of a flag. A flag that belongs to
the operator has to be found in each of these forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
    "-pcp": "--prefill-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-O": "--optimization-level",
    "-n": "--nnodes",
    "-r": "--node-rank",
}

MOST_NESTED = 64
"""Levels of keys in a dotted flag that are looked into; no setting of vLLM has more than a few."""

_SWITCH = re.compile(
    r"--(no-.+|enable-.+|enforce-eager|trust-remote-code|async-scheduling|disable-log-stats|disable-custom-all-reduce"
    r"|disable-cascade-attn|disable-hybrid-kv-cache-manager|disable-frontend-multiprocessing)|-ep"
)
"""Flags that take no value; what follows one is a value of nothing."""

_SHORT_FORM = re.compile(rf"({'|'.join(sorted(SHORT, key=len, reverse=True))})([=. ]|$)")
# A value may follow the one-letter forms at once.
_ATTACHED = re.compile(r"-(O[0-9]|[qnr][a-z0-9_]+)$")
_ONE_DASH = re.compile(r"-[A-Za-z][-A-Za-z0-9_]*")
_IN_A_SENTENCE = re.compile(r"(?<![\w=*.-])--?[A-Za-z][\w.+-]*")


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
        """The value as a JSON object; None when it is none, or nested too deeply. A dotted flag is its nested form."""
        if self.sub is not None:
            if self.sub.count(".") > MOST_NESTED:
                return None
            nested: Any = self.value
            for key in reversed(self.sub.split(".")):
                nested = {key: nested}
            return dict(nested)
        try:
            parsed = json.loads(self.value or "")
        except (ValueError, RecursionError):
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
        key, equals, joined = (word[:2], "=", word[2:]) if _ATTACHED.match(word) else word.partition("=")
        values = [joined] if equals else []
        while not equals and index < len(args) and not _is_flag(args[index]):
            values.append(args[index])
            index += 1
        name, sub = _normal(key)
        flags.append(Flag(name, sub, tuple(values), start, index))
    return tuple(flags)


def stray(args: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Arguments that are neither flag nor value: the position of each, what is wrong and the way out.

    vLLM takes some of them for the name of a model, which it then ignores. The words never
    hold the argument itself, which may be a secret, except for the name of a flag.
    """
    found: list[tuple[int, str]] = []
    takes_values = False
    for index, word in enumerate(args):
        if _is_flag(word):
            name, space, _ = word.partition("=")[0].partition(" ")
            if space:
                found.append(
                    (index, f"holds {name} and its value in one argument: write {name}=value, or two arguments")
                )
            switch = _SWITCH.fullmatch(word.replace("_", "-"))
            takes_values = "=" not in word and not space and not _ATTACHED.match(word) and not switch
        elif word == "--":
            found.append((index, "-- ends the flags, and vLLM ignores what follows: remove it"))
            takes_values = True
        elif one_dash := _ONE_DASH.match(word):
            found.append((index, f"{one_dash.group()} is no flag of vLLM: whole names have two dashes, --like-this"))
            takes_values = True
        elif not word.strip():
            found.append((index, "is blank: remove it"))
        elif not takes_values:
            words = "is a value without a flag before it, which vLLM ignores: write --flag=value, with two dashes"
            found.append((index, words))
    return tuple(found)


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


def named_in(said: str, given: Mapping[str, Sequence[str]]) -> list[str]:
    """Where the flags stand that a sentence names, whole where only their beginning was given.

    ``given``: arguments by the field that holds them. Returns places such as ``spec.prefill.args[2]``, in its order.
    """
    named = {flag.name for flag in parse(_IN_A_SENTENCE.findall(said))}
    return [
        f"{field}[{flag.start}]"
        for field, args in given.items()
        for flag in parse(args)
        if flag.name in named or (len(flag.name) > len("--x") and any(name.startswith(flag.name) for name in named))
    ]


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


def is_number(value: str) -> bool:
    """Whether ``value`` is a whole number without a sign, in ASCII digits as vLLM and the plan write it."""
    return value.isascii() and value.isdigit()


def without(args: Sequence[str], name: str) -> tuple[str, ...]:
    """``args`` without each occurrence of ``name`` and its values."""
    dropped = {index for flag in find(args, name) for index in range(flag.start, flag.end)}
    return tuple(word for index, word in enumerate(args) if index not in dropped)


def _is_flag(word: str) -> bool:
    return (word.startswith("--") and len(word) > 2) or bool(_SHORT_FORM.match(word) or _ATTACHED.match(word))


def _normal(key: str) -> tuple[str, str | None]:
    head, dot, sub = key.partition(".")
    if head in SHORT:
        return SHORT[head], sub if dot else None
    return "--" + re.sub("_", "-", head[2:]), sub if dot else None
