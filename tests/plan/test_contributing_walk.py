"""The store that CONTRIBUTING.md adds is one that objects can name."""

from __future__ import annotations

import json
from pathlib import Path

from tests import contributing
from tests.api.objects import serving

URL = "toy://name"


def test_the_walk_lets_objects_name_the_store_and_engines_get_its_address(tmp_path: Path) -> None:
    copy = contributing.copy_to(tmp_path)
    path = copy / "object.yaml"
    path.write_text(json.dumps(serving({"spec.cache": {"l2": {"type": "external", "url": URL}}})))
    refused = contributing.run(copy, "-m", "kvserving_operator", "validate", str(path))
    assert refused.returncode == 1
    assert f"{URL} must start with redis://" in refused.stdout + refused.stderr

    contributing.make(copy)
    rendered = contributing.run(copy, "-m", "kvserving_operator", "render", str(path))
    assert rendered.returncode == 0, rendered.stderr
    assert f'"urls":["{URL}"]' in rendered.stdout.replace("\\", "")


def test_the_walk_goes_beside_another_store_that_was_added_where_it_adds_its_own(tmp_path: Path) -> None:
    copy = contributing.copy_to(tmp_path)
    lines = copy / "connector/src/kvserving_connector/store/open.py"
    schemes = copy / "operator/src/kvserving_operator/api/stores.py"
    contributing.make(copy)
    for path in (lines, schemes):
        # Another developer's lines: one above and one below each of the walk's.
        text = path.read_text()
        for line in text.splitlines(keepends=True):
            if "toy" in line:
                text = text.replace(line, line.replace("toy", "above") + line + line.replace("toy", "below"))
        path.write_text(text)
    with_both = lines.read_text(), schemes.read_text()

    contributing.undo(copy)
    assert "toy" not in lines.read_text() + schemes.read_text()
    contributing.make(copy)
    assert [sorted(path.read_text().splitlines()) for path in (lines, schemes)] == [
        sorted(text.splitlines()) for text in with_both
    ]
