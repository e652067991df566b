"""The store that CONTRIBUTING.md adds is one that objects can name."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml
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


def test_a_store_in_a_folder_is_named_by_a_path_and_opens_no_way_out(tmp_path: Path) -> None:
    copy = contributing.copy_to(tmp_path)
    contributing.make(copy)
    stores = copy / "operator/src/kvserving_operator/api/stores.py"
    line = '"toy": External("toy://name", bounded=True)'
    text = stores.read_text()
    assert line in text
    stores.write_text(text.replace(line, '"toy": External("toy:///path", folder=True, bounded=True)'))
    path = copy / "object.yaml"

    def run(url: str, *command: str) -> subprocess.CompletedProcess[str]:
        path.write_text(json.dumps(serving({"spec.cache": {"l2": {"type": "external", "url": url}}})))
        return contributing.run(copy, "-m", "kvserving_operator", *command, str(path))

    rendered = run("toy:///var/lib/kv/l2?bytes=5000", "render")
    assert rendered.returncode == 0, rendered.stderr
    assert '"urls":["toy:///var/lib/kv/l2?bytes=5000"]' in rendered.stdout.replace("\\", "")
    path.write_text(json.dumps(serving({"spec.cache": {"l1": {"size": "1Gi"}}})))
    without = contributing.run(copy, "-m", "kvserving_operator", "render", str(path))
    assert _ways_out(rendered.stdout) == _ways_out(without.stdout)
    for url, shown, problem in (
        ("toy://name/l2", "toy://name/l2", "names a host"),
        ("toy:///", "toy:///", "names no path below /"),
        ("toy:///l2?bytes=5Gi", "toy:///l2?***", "has ?bytes= with what is no number of bytes above 0"),
    ):
        refused = run(url, "validate")
        assert refused.returncode == 1
        assert f"spec.cache.l2.url: '{shown}' {problem}" in refused.stdout + refused.stderr
        assert "write it as toy:///path" in refused.stdout + refused.stderr


def _ways_out(rendered: str) -> list[Any]:
    policies = [each for each in yaml.safe_load_all(rendered) if each and each["kind"] == "NetworkPolicy"]
    (engines,) = (each["spec"] for each in policies if "-engines" in each["metadata"]["name"])
    return [rule for rule in engines["egress"] if "podSelector" not in str(rule)]


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
