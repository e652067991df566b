"""Figures that look measured, and whether their section says what measured them and on what.

A section with such a figure has one of these:

    Measured by `COMMAND` on HARDWARE          in its text
    measured by hand on HARDWARE               where no command does
    a link to a page of benchmarks/results     each of which ends with "Made by `COMMAND` on HARDWARE"
    <!-- not measured: WHAT THE FIGURES ARE -->

Times in whole seconds and minutes are left out: most are settings and bounds. Units of a rate, milliseconds, fractions
of a second and comparisons ("3 times faster") hardly ever are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.documents.pages import Section

WAY_OUT = (
    "say what measured these figures: 'Measured by `COMMAND` on HARDWARE' in the section, or a link to a page of "
    "benchmarks/results; where they are no measurement, `<!-- not measured: WHAT THEY ARE -->`"
)
_AMOUNT = r"\d[\d,.]*"
_PATTERNS = (
    rf"{_AMOUNT} ?[GMK]i?B/s",
    rf"{_AMOUNT} ?(?:tok/s|req/s|(?:tokens|requests) (?:a|per) second)",
    rf"{_AMOUNT} (?:ms|µs|us)\b",
    r"\d+\.\d+ ?s\b",
    rf"{_AMOUNT} times (?:as|faster|slower|less|more|longer|shorter|the)\b",
    rf"{_AMOUNT} ?[x\u00d7] (?:as|faster|slower|less|more)\b",
    rf"{_AMOUNT} ?% (?:faster|slower|less|more|of the time)\b",
)
_FIGURE = re.compile("|".join(_PATTERNS))
_CODE = re.compile(r"`[^`]*`")
_SOURCE = re.compile(r"\b[Mm]easured by `(?P<command>[^`]+)`,? on (?:an? |the |one |two )?\w")
_BY_HAND = re.compile(r"\b[Mm]easured by hand on (?:an? |the |one |two )?\w")
_MADE = re.compile(r"\b[Mm]ade by `(?P<command>[^`]+)`(?:[^.]|\.(?! ))* on \w")
_RESULTS = re.compile(r"\]\((?:\.\./)*benchmarks/results/[\w-]+\.md(?:#[\w-]*)?\)")
_NUMBER = re.compile(r"(?<![\w./,-])\d[\d,]*(?:\.\d+)?(?![\w/]|\.\d)(?P<mebi> MiB\b)?")
_EXEMPT = re.compile(r"<!-- not measured: \S[^>]* -->")


def figures(section: Section) -> list[str]:
    """Return the figures of a section that look measured; what stands in code is none."""
    return _FIGURE.findall(_CODE.sub("", section.text))


def commands(section: Section) -> Iterator[str]:
    """The commands that a section says have measured its figures."""
    text = " ".join(section.text.split())
    yield from (found["command"] for pattern in (_SOURCE, _MADE) for found in pattern.finditer(text))


def unsourced(section: Section) -> list[str]:
    """Return the figures of a section that names neither what measured them nor what they are."""
    text = " ".join(section.text.split())
    if any(pattern.search(text) for pattern in (_SOURCE, _BY_HAND, _MADE, _RESULTS, _EXEMPT)):
        return []
    return figures(section)


def differing(text: str, source: str) -> list[str]:
    """Return the numbers of ``text`` that ``source`` does not have, rounded as they are; fractions are left out."""
    have = [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", source)]
    missing = []
    for found in _NUMBER.finditer(_CODE.sub("", text)):
        number = found[0].removesuffix(" MiB").rstrip(",")
        value, places = float(number.replace(",", "")), len(number.partition(".")[2])
        wanted = {value, value * 1024} if found["mebi"] else {value}
        if not any(round(one, places) in wanted for one in have):
            missing.append(number)
    return missing
