"""The store that CONTRIBUTING.md adds keeps the contract."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests import contributing


def test_the_walk_adds_a_store_that_keeps_the_contract(tmp_path: Path) -> None:
    copy = contributing.copy_to(tmp_path)
    contributing.make(copy)
    (written,) = re.findall(r"python -m pytest (.*)$", contributing.section(), re.MULTILINE)
    files = [str(path.relative_to(copy)) for pattern in written.split() for path in sorted(copy.glob(pattern))]
    assert len(files) == 5
    tests = contributing.run(copy, "-m", "pytest", "-q", *files, "-k", "toy or kind or scheme")
    assert tests.returncode == 0, tests.stdout
    (passed,) = re.findall(r"^(\d+) passed", tests.stdout, re.MULTILINE)
    assert int(passed) >= 30
    (usage,) = re.findall(r"python -m (kvserving_connector\.store .*)$", contributing.section(), re.MULTILINE)
    answer = contributing.run(copy, "-m", *usage.split())
    assert json.loads(answer.stdout) == {"namespaces": [], "used_bytes": 0, "limit_bytes": 2**30, "free_bytes": None}
