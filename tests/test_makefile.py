"""The Makefile's installations: what they tell a terminal and a log, and which targets need them."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.chart import fixtures

ROOT = Path(__file__).parents[1]
# Prints the recipes and runs none of them.
_DRY = ("make", "--dry-run", "--always-make", "install", "install-engine")


def recipes(errors: int) -> list[str]:
    """The installing lines of the recipes, where standard error goes to ``errors``."""
    done = subprocess.run(_DRY, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, check=True, timeout=60)
    return [line for line in done.stdout.splitlines() if re.search(r"uv pip (install|sync)\b.* --require-hashes", line)]


def test_installations_show_their_progress_to_a_terminal_alone() -> None:
    terminal, errors = pty.openpty()
    try:
        shown, logged = recipes(errors), recipes(subprocess.DEVNULL)
    finally:
        os.close(errors)
        os.close(terminal)
    assert len(shown) == len(logged) == 2
    assert not any("--quiet" in line for line in shown)
    assert all("--quiet" in line for line in logged)


ENGINES = re.findall(r"^([a-z0-9-]+):.*\$\(ENGINE\)", (ROOT / "Makefile").read_text(), re.MULTILINE)
OURS = str(ROOT / ".venv-engine/bin/python")


def installs_engines(target: str, python: str | None, *more: str) -> bool:
    """Whether the target, with nothing made, installs vLLM where KVSERVING_ENGINE_PYTHON is ``python``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVSERVING_", "MAKE", "MFLAGS"))}
    named = {} if python is None else {"KVSERVING_ENGINE_PYTHON": python}
    dry = ("make", "--dry-run", "--always-make", target, *more)
    done = subprocess.run(dry, cwd=ROOT, env=kept | named, capture_output=True, text=True, check=True, timeout=60)
    return "requirements/engine-cpu.txt" in done.stdout


@pytest.mark.parametrize("target", ENGINES)
def test_what_runs_engines_installs_none_where_another_environment_is_named(target: str) -> None:
    assert installs_engines(target, None)
    assert installs_engines(target, OURS), "the quick start exports the path of ours"
    assert not installs_engines(target, "/env/bin/python")
    assert not installs_engines(target, None, "KVSERVING_ENGINE_PYTHON=/env/bin/python")


def test_the_targets_that_run_engines_of_the_named_environment_are_all_found() -> None:
    assert {"demo", "transcript", "pictures", "e2e-local", "e2e-tiers", "e2e-cluster"} <= set(ENGINES)
    assert installs_engines("e2e-soak", "/env/bin/python"), "it runs ours by its path"


def shared(folder: Path) -> dict[str, str]:
    """The folders that checkouts share, as the Makefile in ``folder`` names them."""
    told = ("make", "--dry-run", "--print-data-base", "help")
    done = subprocess.run(told, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return dict(re.findall(r"^(SCAN|DOCS|CACHE) := (.*)$", done.stdout, re.MULTILINE))


def test_checkouts_with_other_pins_share_no_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    ours = shared(ROOT)
    assert shared(tmp_path) == ours
    for names, changed in (("scan.txt", "SCAN"), ("docs.txt", "DOCS"), ("docs-npm.sha256", "DOCS")):
        before = shared(tmp_path)
        with (tmp_path / "requirements" / names).open("a") as file:
            file.write("# other\n")
        assert {name for name, folder in shared(tmp_path).items() if folder != before[name]} == {changed}


def test_the_charts_tests_look_for_checkov_where_it_is_installed() -> None:
    assert shared(ROOT)["SCAN"] == str(fixtures.scan_folder())


def test_each_installation_names_all_that_the_environment_is_to_keep() -> None:
    """`uv pip sync` removes the rest: the installer itself, and what an earlier target has installed."""
    made = (".venv/.installed", ".venv/.dev")
    told = ("make", "--dry-run", "--always-make", made[-1])
    done = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    files = [re.findall(r"requirements/(\S+)\.txt", line) for line in done.stdout.splitlines() if "uv pip sync" in line]
    assert files == [["bootstrap", "operator"], ["bootstrap", "operator", "dev"]]
    assert len(re.findall(r"uv pip install .* -e operator$", done.stdout, re.MULTILINE)) == len(made)


@pytest.mark.parametrize(("whose", "taken"), [("another", False), ("gone", True), ("this", True)])
def test_the_environment_of_another_checkout_is_not_taken_over(tmp_path: Path, whose: str, taken: bool) -> None:
    environment = tmp_path / "env"
    packages = environment / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    sources = {
        "another": tmp_path / "connector/src",
        "gone": Path("/gone/connector/src"),
        "this": ROOT / "connector/src",
    }
    (tmp_path / "connector/src").mkdir(parents=True)
    (packages / "_editable_impl_kvserving_connector.pth").write_text(str(sources[whose]))
    # Stops before anything is installed.
    make = (
        "make",
        "--always-make",
        f"ENGINE_VENV={environment}",
        "UV=false",
        "BIN=/bin",
        "VENV=" + str(tmp_path / "own"),
    )
    (tmp_path / "own").mkdir()
    done = subprocess.run(
        (*make, "-o", str(tmp_path / "own/.bootstrapped"), str(environment / ".installed")),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert ("not this checkout's" in done.stderr) is not taken
    assert ("installing vLLM" in done.stdout) is taken
    assert (f"KVSERVING_ENGINE_PYTHON={environment}/bin/python" in done.stderr) is not taken
