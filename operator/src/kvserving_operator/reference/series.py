"""The metrics of the engines, as the connector's package declares them.

The operator never imports that package, which is another distribution: its list is asked for in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .markdown import code, codes, link, page, table

PAGE = "reference-metrics.md"
SOURCES = Path(__file__).parents[4] / "connector" / "src"
_MODULE = "kvserving_connector.declared"


class NoConnector(RuntimeError):
    """The connector's sources are not beside the operator's, or do not run; the message says which."""


def render() -> str:
    """Return the page. Raises ``NoConnector``."""
    return page(
        "Metrics of the engines",
        "What our part of an engine adds to its `/metrics`. The operator's own metrics are in "
        "[its reference](operator-reference.md#metrics). vLLM's own series stand beside these unchanged. Every series "
        "but those of the guard also has vLLM's labels `model_name` and `engine`.",
        *_groups(declared(SOURCES)),
    )


def declared(sources: Path) -> list[dict[str, Any]]:
    """Return the groups of series that the package in ``sources`` declares. Raises ``NoConnector``."""
    if not (sources / "kvserving_connector").is_dir():
        raise NoConnector(f"{sources} has no kvserving_connector: run this in a checkout, which has both distributions")
    answer = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", _MODULE],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(sources)},
    )
    if answer.returncode:
        raise NoConnector(f"python -m {_MODULE} ended with {answer.returncode}: {answer.stderr.strip()}")
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def _groups(several: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    header = ("Series", "Type", "Label", "Meaning")
    told: dict[tuple[str, ...], str] = {}
    for group in several:
        yield f"## {group['title']}"
        yield group["where"]
        yield table(
            header, ((code(one["name"]), one["type"], code(one["label"] or ""), one["text"]) for one in group["series"])
        )
        for label in group["labels"]:
            values = tuple(label["values"])
            of = f"`{label['name']}` of {codes(label['of'])}"
            if values in told:
                yield f"{of}: as above, under {link(told[values])}."
            elif all(label["values"].values()):
                yield f"{of}:"
                yield table(("Value", "Meaning"), ((code(value), text) for value, text in label["values"].items()))
                told[values] = group["title"]
            else:
                yield f"{of}: {codes(values)}."
