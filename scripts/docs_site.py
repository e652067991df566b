"""What mkdocs is told beyond mkdocs.yml: pages lie as in the repository, and the index is the navigation.

A page may link to anything in the repository. What it links to outside ``docs/`` becomes a page as well: a Markdown
file as it is, another text as a block of code. So links need no rewriting, and those that lead nowhere fail the build.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page

_LOG = logging.getLogger("mkdocs.hooks.docs_site")
"""Below mkdocs' own, which counts warnings."""
ROOT = Path(__file__).resolve().parents[1]
INDEX = "docs/README.md"
SCRIPTS = Path(os.environ.get("KVSERVING_DOCS_SCRIPTS", ROOT / "build" / "docs"))
"""Where mermaid and the shim of search without a server are unpacked; the Makefile sets it."""

_MERMAID = "assets/mermaid.min.js"
_SEARCH_SHIM = "assets/iframe-worker.js"
_FROM = {_MERMAID: "mermaid/package/dist/mermaid.min.js", _SEARCH_SHIM: "iframe-worker/package/shim/index.js"}

_SECTION = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^(?:\|| ?[-*]|\d+\.) *\[(?P<title>[^]]+)\]\((?P<target>[^)#\s]+)\)")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
_CODE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_DEFINED = re.compile(r"^ {0,3}\[(?P<name>[^]]+)\]: *\S", re.MULTILINE)
_REFERENCE = re.compile(r"(?<!\\)\[(?P<text>[^][]+)\]\[(?P<name>[^][]*)\]")
_HIGHLIGHTED = {".yaml": "yaml", ".py": "python", ".json": "json", ".sh": "bash", ".toml": "toml"}


def navigation(root: Path = ROOT) -> list[dict[str, Any]]:
    """Return the sections of the index with the pages of their tables; a folder's README brings what it lists."""
    sections: list[dict[str, Any]] = []
    for line in (root / INDEX).read_text().splitlines():
        if section := _SECTION.match(line):
            sections.append({section[1]: []})
        elif sections and (row := _ROW.match(line)):
            path = _inside(root, INDEX, row["target"])
            below = list(_rows(root, path)) if path.startswith("docs/") and path.endswith("/README.md") else []
            [pages] = sections[-1].values()
            pages.append({row["title"]: [path, *below] if below else path})
    [first] = sections[0].values()
    first[:0] = [{"KVServing": "README.md"}, {"All pages": INDEX}]
    return sections


def _rows(root: Path, page: str) -> Iterator[dict[str, str]]:
    for line in (root / page).read_text().splitlines():
        if row := _ROW.match(line):
            yield {row["title"]: _inside(root, page, row["target"])}


def published(root: Path = ROOT) -> list[str]:
    """Return all files of the site: those in ``docs/``, README, and what any of their pages links to, in turn."""
    found = {str(path.relative_to(root)) for path in (root / "docs").rglob("*") if path.is_file()} | {"README.md"}
    left = sorted(found)
    while left:
        page = left.pop()
        if page.endswith(".md"):
            new = {path for path in linked(root, page) if (root / path).is_file()} - found
            found |= new
            left += sorted(new)
    return sorted(found)


def linked(root: Path, page: str) -> set[str]:
    """Return what a page links to in the repository, there or not; code has no links."""
    text = _CODE.sub("", (root / page).read_text())
    paths = {_inside(root, page, link) for link in _LINK.findall(text) if "://" not in link}
    return {path for path in paths if not path.startswith("..")}


def undefined(text: str) -> list[str]:
    """Return the links by reference, ``[text][name]``, that a page does not define; Markdown shows them as text."""
    text = _CODE.sub("", text)
    defined = {_plain(found["name"]) for found in _DEFINED.finditer(text)}
    return [found[0] for found in _REFERENCE.finditer(text) if _plain(found["name"] or found["text"]) not in defined]


def dangling(site: Path) -> list[str]:
    """Return a line for each link of a built page, raw HTML included, to a fragment that its target has not."""
    pages = {file.resolve(): _Anchors(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    told = []
    for file, page in pages.items():
        for link in page.links:
            path, sharp, fragment = link.partition("#")
            target = pages.get((file.parent / unquote(path)).resolve() if path else file)
            # A target that is no page is for LinkChecker; "#" and "#top" are the top of any.
            if sharp and target and fragment not in ("", "top") and unquote(fragment) not in target.names:
                told.append(f"{file.relative_to(site.resolve())}: {link} leads to no place of that name")
    return told


class _Anchors(HTMLParser):
    """The names in a page that a fragment can lead to, and the page's own links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.names |= {name for name in (found.get("id"), found.get("name") if tag == "a" else None) if name}
        link = found.get("href") if tag == "a" else None
        if link and "://" not in link and not link.startswith("mailto:"):
            self.links.append(link)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _inside(root: Path, page: str, link: str) -> str:
    return os.path.relpath(os.path.normpath((root / page).parent / link), root)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the index, and anchors as GitHub makes them."""
    from pymdownx.slugs import slugify

    config.nav = navigation()
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the repository's files in the place of those of the folder; what the theme brings stays."""
    from mkdocs.structure.files import File, Files

    kept = [file for file in files if file.src_dir != config.docs_dir]
    ours = [_file(path, config) for path in published()]
    scripts = [File.generated(config, name, abs_src_path=str(SCRIPTS / path)) for name, path in _FROM.items()]
    return Files([*kept, *ours, *scripts])


def _file(path: str, config: MkDocsConfig) -> File:
    from mkdocs.structure.files import File, InclusionLevel

    class Source(File):  # type: ignore[misc]
        """A text that is no Markdown, shown as a page."""

        def is_documentation_page(self) -> bool:
            return True

        @property
        def content_string(self) -> str:
            language = _HIGHLIGHTED.get(Path(path).suffix, "text")
            return f"# {path}\n\n``````{language}\n{(ROOT / path).read_text()}\n``````\n"

    where: dict[str, Any] = {"src_dir": str(ROOT), "dest_dir": config.site_dir, "use_directory_urls": False}
    if path.endswith(".md"):
        inside = path.startswith("docs/")
        return File(path, **where, inclusion=InclusionLevel.UNDEFINED if inside else InclusionLevel.NOT_IN_NAV)
    if b"\0" in (ROOT / path).read_bytes()[:4096]:
        return File(path, **where)
    return Source(path, **where, dest_uri=f"{path}.html", inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Tell of links by reference to nothing, which fail a strict build."""
    for link in undefined(markdown):
        _LOG.warning("%s: %s has no definition: write [text](page.md), or define the name", page.file.src_path, link)


def on_post_build(config: MkDocsConfig) -> None:
    """Tell of links to fragments that are not there, which fail a strict build."""
    for line in dangling(Path(config.site_dir)):
        _LOG.warning(line)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load mermaid, which is large, where there is a diagram; the theme takes the one that is loaded."""
    from mkdocs.utils import get_relative_url

    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url(_MERMAID, page.url)}"></script>'
    return output.replace("</body>", f"{script}</body>")
