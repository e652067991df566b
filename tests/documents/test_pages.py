"""Pages come apart into sections, links, and blocks with the mark before each; links and the index are right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documents.pages import DOCS, OTHERS, PAGES, Block, anchors, blocks, links, sections, shown

FENCE = "these are commands: write them in a fence of `console`, where a test finds them"
PAGE = """\
# One: a *title*

See [`two`](two.md#three) and [there](https://example.org), not `[a](b)`.

<!-- run: unit -->
```console
# no heading, [no](link.md)
true
```

## `two` & three

1. a list

   ~~~yaml
   a: 1
     ```
   ~~~
<!-- far -->

```text
plain
```
"""


def test_blocks_have_language_line_text_and_the_mark_on_the_line_before() -> None:
    assert blocks(PAGE) == [
        Block("console", "# no heading, [no](link.md)\ntrue", 6, "run: unit"),
        Block("yaml", "a: 1\n  ```", 15),
        Block("text", "plain", 21),
    ]


def test_a_fence_that_is_never_closed_is_told() -> None:
    with pytest.raises(ValueError, match="line 3: the fence is never closed"):
        blocks("a\n\n```console\ntrue\n")


@pytest.mark.parametrize("language", ["", "shell", "bash", "YAML", "yml", "yaml title=one"])
def test_a_fence_of_no_known_language_is_told_with_the_known_ones(language: str) -> None:
    with pytest.raises(
        ValueError, match=r"line 2: the language .* is none of console, .* write `console` for commands"
    ):
        blocks(f"a\n```{language}\nkvserving zzz --nope\n```\n")


def test_a_fence_that_a_quotation_hides_is_told() -> None:
    with pytest.raises(ValueError, match="line 1: a fence in a quotation"):
        blocks("> ```console\n> kvserving zzz --nope\n> ```\n")


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_commands_stand_in_fences_of_their_own(page: Path) -> None:
    text = page.read_text()
    plain = [line for section in sections(text) for line in section.text.splitlines()]
    indented = [line for line in plain if re.match(r"(?: {4,}|\t)(?:\$ )?(?:kubectl|kvserving|make|pip|pytest) ", line)]
    others = [line for block in blocks(text) if block.language == "text" for line in block.text.splitlines()]
    # The reference has the usage of each command so.
    if page.name != "reference-cli.md":
        assert [line for line in others if re.match(r"\$ |kvserving |make ", line)] == [], FENCE
    assert indented == [], FENCE
    assert "<pre" not in text, FENCE


def misplaced(name: str, index: str, there: set[str]) -> Iterator[str]:
    """What is wrong with the index ``name`` of a folder that has the pages ``there``, each with the way out."""
    listed = Counter(link for link in links(index) if not re.search("[/#]", link))
    yield from (f"add a row for {page} to {name}" for page in sorted(there - set(listed)))
    yield from (f"{name} lists {page} {times} times: leave one" for page, times in listed.items() if times > 1)
    gone = sorted(set(listed) - there)
    yield from (f"{name} lists {page}, which is not there: take its row out" for page in gone)


def test_sections_have_no_blocks_and_links_none_of_blocks() -> None:
    assert [(section.heading, section.line) for section in sections(PAGE)] == [
        ("", 1),
        ("One: a *title*", 1),
        ("`two` & three", 11),
    ]
    assert "true" not in sections(PAGE)[1].text
    assert links(PAGE) == ["two.md#three", "https://example.org"]


def test_anchors_are_those_of_github() -> None:
    assert anchors(PAGE) == {"one-a-title", "two--three"}


def test_links_and_names_of_raw_html_count() -> None:
    text = """# One\n\n<a id="two"></a> <a href="#three">x</a> <img alt='a' src='one.png'> `<a href="#code">`\n"""
    assert links(text) == ["#three", "one.png"]
    assert anchors(text) == {"one", "two"}


@pytest.mark.parametrize("index", [DOCS / "README.md", DOCS / "adr" / "README.md"], ids=shown)
def test_every_page_is_in_the_index_of_its_folder_once(index: Path) -> None:
    there = {page.name for page in index.parent.glob("*.md") if page != index}
    assert list(misplaced(shown(index), index.read_text(), there)) == []


def test_a_page_that_the_index_lacks_is_told_with_the_way_out() -> None:
    index = "[a](a.md), [b](b.md), [b again](b.md), [its part](b.md#part), [gone](gone.md), [code](../code.md)"
    assert list(misplaced("docs/README.md", index, {"a.md", "b.md", "new.md"})) == [
        "add a row for new.md to docs/README.md",
        "docs/README.md lists b.md 2 times: leave one",
        "docs/README.md lists gone.md, which is not there: take its row out",
    ]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in links(text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target.read_text()), f"{link}: there is no such heading"
