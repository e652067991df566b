"""The pages, taken apart: their sections, links, and fenced blocks with the mark before each."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
QUICK_STARTS = tuple(sorted(DOCS.glob("quickstart-*.md")))
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
OTHERS = tuple(
    sorted(
        path
        for pattern in ("*.md", "charts/*/*.md", "connector/*.md", "operator/*.md", "e2e/*/*.md")
        for path in ROOT.glob(pattern)
        if path not in PAGES
    )
)
"""Pages that stand beside what they are about, outside the site's order."""
LANGUAGES = ("console", "diff", "json", "mermaid", "promql", "python", "text", "yaml")
"""Of fenced blocks, in small letters; commands are ``console`` alone, so that no other name hides them."""

_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:a|img)\b[^>]*?\b(?:href|src)=[\"']([^\"']+)[\"']")
_NAME = re.compile(r"<[a-z]\w*\b[^>]*?\b(?:id|name)=[\"']([^\"']+)[\"']")
_HEADING = re.compile(r"^#+ (.+)$")
_FENCE = re.compile(r"^[ \t]*(?P<quoted>(?:> ?)*) *(?P<fence>`{3,}|~{3,}) *(?P<language>[^`]*?) *$")
_COMMENT = re.compile(r"^ *<!-- *(?P<text>.*?) *--> *$")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``mark`` is the text of the comment on the line before it, empty without one."""

    language: str
    text: str
    line: int
    """Of the fence that opens it; the first line of a page is 1."""
    mark: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, up to the next one, without fenced blocks."""

    heading: str
    text: str
    line: int


def shown(page: Path) -> str:
    """Return the path of a page from the root of the repository."""
    return str(page.relative_to(ROOT))


def links(text: str) -> list[str]:
    """Return the targets of all links, in order; what stands in code is none."""
    plain = (_CODE.sub("", section.text) for section in sections(text))
    return [link or raw for part in plain for link, raw in _LINK.findall(part)]


def anchors(text: str) -> set[str]:
    """Return the anchors of all headings, as GitHub and the site make them, and the names that raw HTML gives."""
    parts = sections(text)
    found = (section.heading for section in parts if section.heading)
    named = {name for section in parts for name in _NAME.findall(_CODE.sub("", section.text))}
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks.

    Raises ``ValueError`` for a fence that is never closed, stands in a quotation, or has no language of ``LANGUAGES``.
    """
    return _split(text)[0]


def sections(text: str) -> list[Section]:
    """Return the sections; the first, which may be empty, has what stands before any heading."""
    found = [Section("", "", 1)]
    for number, line in _split(text)[1]:
        if heading := _HEADING.match(line):
            found.append(Section(heading[1], "", number))
        else:
            last = found[-1]
            found[-1] = Section(last.heading, f"{last.text}{line}\n", last.line)
    return found


def _split(text: str) -> tuple[list[Block], list[tuple[int, str]]]:
    """Return the fenced blocks, and the other lines with their numbers."""
    fenced: list[Block] = []
    rest: list[tuple[int, str]] = []
    opened: re.Match[str] | None = None
    body: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if opened is not None:
            if line.strip().startswith(opened["fence"]) and not line.strip().strip(opened["fence"][0]):
                before = _COMMENT.match(rest[-1][1]) if rest and rest[-1][0] == start - 1 else None
                inside = textwrap.dedent("\n".join(body))
                fenced.append(Block(opened["language"], inside, start, before["text"] if before else ""))
                opened = None
            else:
                body.append(line)
        elif opened := _FENCE.match(line):
            body, start = [], number
            if opened["quoted"]:
                raise ValueError(f"line {number}: a fence in a quotation, which no test reads: take it out of there")
            if opened["language"] not in LANGUAGES:
                raise ValueError(
                    f"line {number}: the language {opened['language']!r} is none of {', '.join(LANGUAGES)}: "
                    "write `console` for commands, `text` where none fits"
                )
        else:
            rest.append((number, line))
    if opened is not None:
        raise ValueError(f"line {start}: the fence is never closed")
    return fenced, rest
