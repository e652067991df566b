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
