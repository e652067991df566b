"""Pages come apart into sections, links, and blocks with the mark before each; links and the index are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.documents.pages import DOCS, OTHERS, PAGES, Block, anchors, blocks, links, sections, shown

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
    assert page.name == "reference-cli.md" or not [line for line in others if re.match(r"\$ |kvserving |make ", line)]
    assert indented == []
    assert "<pre" not in text


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


def test_every_page_is_in_the_index_once() -> None:
    listed = [link for link in links((DOCS / "README.md").read_text()) if "/" not in link]
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page.name != "README.md")


def test_every_decision_is_in_its_index_once() -> None:
    listed = [link for link in links((DOCS / "adr" / "README.md").read_text()) if "/" not in link]
    assert sorted(listed) == sorted(page.name for page in (DOCS / "adr").glob("0*.md"))


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
