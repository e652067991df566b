"""The examples under ``examples``: where they are and how long they are."""

from __future__ import annotations

from pathlib import Path

import yaml

EXAMPLES = Path(__file__).parents[1] / "examples"
PEERS = EXAMPLES / "peers"


def files() -> tuple[Path, ...]:
    """Return the files with ``KVServing`` objects."""
    return tuple(path for path in sorted(EXAMPLES.rglob("*.yaml")) if not {"gitops", "scaling"} & set(path.parts))


def lines(path: Path) -> int:
    """Return the number of lines of YAML: without comments and empty lines."""
    stripped = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in stripped if line and not line.startswith("#"))


def spread_lines(path: Path) -> int:
    """Return the number of lines of the same YAML with a field or an item on each, as the files of others have it."""
    documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return sum(
        len(yaml.safe_dump(document, default_flow_style=False, width=10**6).splitlines()) for document in documents
    )
