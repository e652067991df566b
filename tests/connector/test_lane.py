"""The lane of the connector's tests fails where files skip themselves for want of the engine or of a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.connector.store import servers

ROOT = Path(__file__).parents[2]
FILE = "tests/connector/test_regions.py"


def run(folder: Path, *tests: str, lane: bool = True) -> subprocess.CompletedProcess[str]:
    """Run tests with a vLLM in ``folder`` that lacks one of its dependencies."""
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text("import one_of_its_dependencies\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KVSERVING_", "PYTEST_"))}
    environment["PYTHONPATH"] = os.pathsep.join((str(folder), environment.get("PYTHONPATH", "")))
    if lane:
        environment["KVSERVING_ENGINE_TESTS"] = "required"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_engine_fails_the_lane_with_what_is_missing(tmp_path: Path, workers: int) -> None:
    done = run(tmp_path, FILE, "tests/connector/test_ranges.py", "-n", str(workers))
    assert done.returncode not in (0, 5), done.stdout
    assert f"ERROR {FILE}" in done.stdout
    assert "import vllm: ModuleNotFoundError: No module named 'one_of_its_dependencies'" in done.stdout


def test_so_does_a_folder_whose_conftest_skips_it(tmp_path: Path) -> None:
    others = [path for path in (ROOT / "tests" / "connector").iterdir() if path.name != "worker_cache"]
    done = run(tmp_path, "tests/connector", *(f"--ignore={path}" for path in others if path.name != "conftest.py"))
    assert done.returncode not in (0, 5), done.stdout
    assert "ERROR tests/connector/worker_cache" in done.stdout


def test_without_the_lane_what_needs_no_engine_is_tested_and_the_rest_is_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, FILE, "tests/connector/test_ranges.py", lane=False)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


def test_what_another_process_of_the_lane_runs_is_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, "tests/connector/test_kvcached_patches.py")
    assert "1 skipped" in done.stdout
    assert "error" not in done.stdout


def test_ci_has_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVSERVING_VALKEY_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="CI never skips"):
        servers.program()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception):
        servers.program()
