"""The flags that vLLM's own parser knows, by minor version: read from ``vllm_flags.txt``, a generated table.

The head of that file says how a line is read and how the table is made again for another version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

Minor = tuple[int, int]
Takes = Literal["value", "optional", "switch"]

FILE_NAME = "vllm_flags.txt"


@dataclass(frozen=True)
class Known:
    """A flag of vLLM: whether a value belongs to it, and the only ones that it takes where there are such."""

    takes: Takes = "value"
    choices: tuple[str, ...] = ()


@cache
def table() -> Mapping[Minor, Mapping[str, Known]]:
    """The flags of each minor version, by their whole names (``--a-b``), oldest version first."""
    return parse(resources.files(__package__).joinpath(FILE_NAME).read_text(encoding="utf-8"))


def parse(text: str) -> dict[Minor, dict[str, Known]]:
    """The table that ``text`` is; see ``render``."""
    lines = [line.split(" ") for line in text.splitlines() if not line.startswith("#")]
    flags: dict[Minor, dict[str, Known]] = {minor(word): {} for word in lines[0][1:]}
    for name, *words in lines[1:]:
        first, last = min(flags), max(flags)
        takes: Takes = "value"
        choices: tuple[str, ...] = ()
        for word in words:
            if word.startswith("="):
                choices = tuple(word[1:].split("|"))
            elif word == "switch":
                takes = "switch"
            elif word == "optional":
                takes = "optional"
            else:
                first, last = (minor(end) for end in (word.partition("-")[0], word.rpartition("-")[2]))
        for version, known in flags.items():
            if first <= version <= last:
                known[name] = Known(takes, choices)
    return flags


def render(flags: Mapping[Minor, Mapping[str, Known]]) -> str:
    """``flags`` as text without the head: the versions, then a line for each flag, and what is alike said once."""
    versions = sorted(flags)
    lines = [" ".join(("versions", *(shown(version) for version in versions)))]
    for name in sorted({name for known in flags.values() for name in known}):
        runs: list[tuple[Known | None, list[Minor]]] = []
        for version in versions:
            known = flags[version].get(name)
            if not runs or runs[-1][0] != known:
                runs.append((known, []))
            runs[-1][1].append(version)
        lines += [_line(name, known, of, versions) for known, of in runs if known is not None]
    return "\n".join(lines) + "\n"


def _line(name: str, known: Known, of: list[Minor], versions: list[Minor]) -> str:
    words = [name]
    if of != versions:
        words.append("-".join(dict.fromkeys((shown(of[0]), shown(of[-1])))))
    if known.takes != "value":
        words.append(known.takes)
    if known.choices:
        words.append(f"={'|'.join(known.choices)}")
    return " ".join(words)


def begun(flags: Iterable[str], written: str) -> tuple[str, ...]:
    """The flags of ``flags`` that ``written`` (normal form) is, or is the beginning of, which vLLM takes as well."""
    if written in flags:
        return (written,)
    return tuple(name for name in flags if name.startswith(written))


def minor(text: str) -> Minor:
    """``"0.33"`` as numbers."""
    first, second = text.split(".")
    return int(first), int(second)


def shown(version: Minor) -> str:
    """Numbers as ``"0.33"``."""
    return f"{version[0]}.{version[1]}"
