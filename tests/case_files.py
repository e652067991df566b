"""Cases under ``tests/cases`` that are JSON files: one case a file, with what must come out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"


def read(folder: str) -> dict[str, dict[str, Any]]:
    """Return the cases of ``tests/cases/<folder>`` by id. Raises ValueError when there is none."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((CASES / folder).glob("*.json"))]
    if not files:
        raise ValueError(f"{CASES / folder} holds no case")
    return {case["id"]: case for case in files}
