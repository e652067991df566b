"""What the lane's commands say on a machine, or by an interpreter, that lacks what they need. No engine is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.gpu import needed, records

ROOT = Path(__file__).parents[2]
BARE = ("-S",)
"""An interpreter without packages."""


def run(*words: str, flags: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KVSERVING"))}
    return subprocess.run(
        [sys.executable, *flags, "-m", *words],
        cwd=ROOT,
        env={**environment, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def fault(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a command that ended with an error and no traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", needed.COMMANDS)
def test_a_command_names_what_its_interpreter_lacks_and_the_way_out(command: str) -> None:
    said = fault(run(command.removesuffix(".__main__"), "--help", flags=BARE))
    assert "error: " in said
    for module in needed.COMMANDS[command]:
        assert f"no {module}" in said
    assert ("PYTHONPATH=operator/src:connector/src" in said) == any(
        "kvserving" in one for one in needed.COMMANDS[command]
    )


def test_where_nothing_is_missing_nothing_is_said() -> None:
    assert needed.lacking(("kvserving_operator", "json")) == ""


@pytest.mark.parametrize(
    ("module", "way"), [("vllm", "the engines' interpreter"), ("a_module_of_nobody", ".venv/bin/python")]
)
def test_the_way_out_fits_what_is_missing(module: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed, "find_spec", lambda name: None)
    assert way in needed.lacking((module,))


def test_every_command_that_imports_the_sources_looks_for_them_first() -> None:
    for file in sorted((ROOT / "e2e" / "gpu").glob("*.py")):
        text = file.read_text()
        if "\nfrom kvserving_" in text and '__name__ == "__main__"' in text and file.stem != "first_tokens_engine":
            assert f"e2e.gpu.{file.stem}" in needed.COMMANDS
            assert text.index("import e2e.gpu.needed") < text.index("\nfrom kvserving_")


def test_a_machine_without_a_gpu_is_told_how_to_do_without() -> None:
    said = fault(run("e2e.gpu", CUDA_VISIBLE_DEVICES=""))
    assert said.endswith(f"--device gpu: {records.NO_GPU}; --device cpu runs the lane without one")


def test_gpus_of_which_nothing_is_known_are_an_error(tmp_path: Path) -> None:
    said = fault(run("e2e.gpu", "--engine-python", sys.executable, CUDA_VISIBLE_DEVICES="0,1", PATH=str(tmp_path)))
    assert "--device gpu: no nvidia-smi on PATH" in said


def test_a_program_that_fails_is_no_answer_about_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'no devices were found'; exit 6\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ValueError, match=r"nvidia-smi fails: .* exit status 6.* no devices were found"):
        records.of_gpus("name")


def test_engines_for_a_cpu_are_not_offered_to_a_gpu() -> None:
    for named in ((), ("--engine-python", "/nowhere/python")):
        said = fault(run("e2e.gpu", *named, CUDA_VISIBLE_DEVICES="0,1"))
        assert "name the interpreter with vLLM for CUDA" in said
        assert "install-engine" not in said
    assert "make install-engine" in fault(run("e2e.gpu", "--device", "cpu"))


@pytest.mark.skipif(not needed.lacking(needed.ENGINE_MODULES), reason="this interpreter has vLLM")
@pytest.mark.parametrize("command", ["first_tokens", "first_token_steps"])
def test_first_tokens_are_not_measured_by_an_interpreter_without_vllm(command: str) -> None:
    said = fault(run(f"e2e.gpu.{command}", PYTHONPATH="operator/src:connector/src"))
    assert "has no vllm" in said
    assert "run it by the engines' interpreter" in said
    assert run(f"e2e.gpu.{command}", "--help", PYTHONPATH="operator/src:connector/src").returncode == 0
