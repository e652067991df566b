"""The site has the pages and the order of the index, and all that they link to."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.docs_site import dangling, linked, navigation, published, undefined
from tests.documents.pages import DOCS, OTHERS, PAGES, README, ROOT, links, shown


def repository(folder: Path) -> Path:
    pages = {
        "README.md": "[docs](docs/README.md), [licence](LICENSE), [out](https://example.org)",
        "LICENSE": "[none](nowhere.md)",
        "docs/README.md": "# All\n\n## Start\n\n| Page | |\n|---|---|\n| [First](first.md) | a |\n\n## Develop\n\n"
        "[Not a row](first.md)\n\n| [Decisions](adr/README.md) | b |\n| [How](../e2e/README.md) | c |\n",
        "docs/first.md": "`[code](../code.yaml)`\n\n```\n[block](../block.yaml)\n```\n\n"
        "![picture](one.png) [x](../x.yaml#a)\n",
        "docs/one.png": "",
        "docs/adr/README.md": "| [1](0001-one.md) | one |\n",
        "docs/adr/0001-one.md": "[up](../../../outside.md)",
        "e2e/README.md": "[deep](deep/page.md)",
        "e2e/deep/page.md": "[back](../../docs/first.md)",
        "e2e/deep/other.md": "",
        "x.yaml": "",
    }
    for path, text in pages.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_the_navigation_is_the_index_with_what_the_readme_of_a_folder_lists(tmp_path: Path) -> None:
    assert navigation(repository(tmp_path)) == [
        {"Start": [{"KVServing": "README.md"}, {"All pages": "docs/README.md"}, {"First": "docs/first.md"}]},
        {"Develop": [{"Decisions": ["docs/adr/README.md", {"1": "docs/adr/0001-one.md"}]}, {"How": "e2e/README.md"}]},
    ]


def test_the_site_has_the_docs_and_all_that_pages_link_to(tmp_path: Path) -> None:
    assert published(repository(tmp_path)) == [
        "LICENSE", "README.md", "docs/README.md", "docs/adr/0001-one.md", "docs/adr/README.md", "docs/first.md",
        "docs/one.png", "e2e/README.md", "e2e/deep/page.md", "x.yaml",
    ]  # fmt: skip


def test_code_has_no_links(tmp_path: Path) -> None:
    assert linked(repository(tmp_path), "docs/first.md") == {"docs/one.png", "x.yaml"}


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("[x][undefined], [Y][], `[a][b]`, a[0]", ["[x][undefined]", "[Y][]"]),
        ("[x][Two Words] and [y][]\n\n[two  words]: a.md\n[y]: <b.md>\n", []),
        ("```console\nx[a][b]\n```\n\n[x][late]\n", ["[x][late]"]),
    ],
)
def test_a_link_by_reference_to_nothing_is_found(text: str, links: list[str]) -> None:
    assert undefined(text) == links


def test_a_link_to_a_fragment_that_is_not_there_is_found_in_raw_html_too(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="one">1</h1><a href="#one">a</a><a href="#none">b</a><a href="docs/b.html#two">c</a>'
        '<a href="docs/b.html#nope">d</a><a href="https://example.org/#x">e</a><a href="gone.html#x">f</a>'
    )
    (tmp_path / "docs" / "b.html").write_text('<a name="two"></a><a href="../index.html#one">a</a><a href="#top">b</a>')
    assert dangling(tmp_path) == [
        "index.html: #none leads to no place of that name",
        "index.html: docs/b.html#nope leads to no place of that name",
    ]


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_every_link_by_reference_is_defined(page: Path) -> None:
    assert undefined(page.read_text()) == []


def _paths(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return [path for part in parts for path in _paths(part)]


def test_every_page_of_this_repository_is_in_the_navigation_once() -> None:
    found = _paths(navigation())
    assert sorted(found) == sorted(set(found))
    pages = {shown(page) for page in DOCS.rglob("*.md")} | {shown(README), "CONTRIBUTING.md"}
    assert sorted(pages - set(found)) == [], "add a row for each of these to the README.md of its folder"


def test_what_pages_link_to_is_on_the_site() -> None:
    files = set(published())
    for page in [README, *DOCS.rglob("*.md")]:
        inside = (link.partition("#")[0] for link in links(page.read_text()) if "://" not in link)
        for path in filter(None, inside):
            assert str((page.parent / path).resolve().relative_to(ROOT)) in files
