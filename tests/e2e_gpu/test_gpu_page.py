"""What the commands of the quick start for a GPU host are run in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from e2e.gpu.page import EXAMPLE, prepared
from tests.documents.lanes import of_lane
from tests.documents.pages import shown
from tests.documents.session import Session

from kvserving_operator import __version__


def test_the_lane_has_the_page() -> None:
    (page,) = of_lane("gpu")
    assert shown(page) == "docs/quickstart-gpu-host.md"


def test_the_commands_find_an_example_with_a_local_model_of_the_same_name(tmp_path: Path) -> None:
    model, engines = tmp_path / "made", tmp_path / "env" / "bin" / "python"
    for folder in (model, engines.parent):
        folder.mkdir(parents=True)
    engines.write_text("#!/bin/sh\necho the engines\n")
    engines.chmod(0o755)
    folder = tmp_path / "page"
    folder.mkdir()
    environment = prepared(folder, engines, model)
    assert (folder / EXAMPLE).read_text().count(f'uri: "file://{folder}/models/Qwen3-8B"') == 1
    assert (folder / "models" / "Qwen3-8B").resolve() == model
    with Session(folder, environment) as shell:
        said = shell.run("~/kvserving-engine/bin/python && kvserving version", 60)
    assert said.status == 0, said.printed
    assert "the engines" in said.printed
    assert __version__ in said.printed
    done = subprocess.run(
        [folder / "bin" / "kvserving", "render", EXAMPLE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--served-model-name=Qwen3-8B" in done.stdout
