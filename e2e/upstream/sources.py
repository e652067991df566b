"""vLLM's own tests of the installed version, or of a wheel's, what they import beside vLLM, and the models they name.

Everything lies in the user's cache, outside the repository, and is made once per version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.local.real_model import engine_python, tiny_model
from tests.connector.compat_wheel import VERSIONS, unpack
from tests.kept import kept

_ROOT = Path(__file__).parents[2]
_REQUIREMENTS = _ROOT / "requirements" / "upstream-test.txt"
_DOWNLOAD_SECONDS = 900
_REVISION = "0" * 40
NEWEST = VERSIONS[-1]
# What markers the tests use; vLLM keeps the list in a file that the tests are run without.
_PYTEST_INI = """[pytest]
markers =
    slow_test
    skip_global_cleanup
    core_model
    hybrid_model
    cpu_model
    cpu_test
    split
    distributed
    optional
asyncio_default_fixture_loop_scope = function
"""
_OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "activation_function": "relu",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "torch_dtype": "float16",
    "use_cache": True,
    "word_embed_proj_dim": 768,
    "hidden_size": 768,
    "ffn_dim": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
}
# Models that the tests name only for their configuration.
_CONFIGURATIONS = {
    "facebook/opt-125m": _OPT,
    "facebook/opt-350m": {
        **_OPT,
        "hidden_size": 1024,
        "ffn_dim": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
    },
}
# Models that the tests run; a tiny one with random weights stands for them. Tests with the second count KV blocks of
# "Hi " repeated, so its tokenizer takes a word for a token.
_RUN = ("Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B-Instruct")
_WORD_LEVEL = _RUN[1]
_WORD_TOKENIZER = """
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers
size = json.load(open(sys.argv[1]))["vocab_size"]
words = {"<unk>": 0} | {f"w{index}": index for index in range(1, size)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.save(sys.argv[2])
"""


@dataclass(frozen=True)
class Sources:
    """Where vLLM's tests of ``version`` are (``folder`` holds ``tests``), and what they need.

    ``before`` are the folders that Python looks into before its own packages: none for the installed version.
    """

    python: str
    version: str
    folder: Path
    packages: Path
    hub: Path
    before: tuple[str, ...] = ()


def prepare(wheel: str = "") -> Sources:
    """Return the tests of the vLLM that KVSERVING_ENGINE_PYTHON has; download what this machine does not have yet.

    ``wheel``: another version, whose wheel's Python files are imported in place of the installed ones. Its compiled
    modules are missing, so tests that compute are not for it. Raises ``NoEngine`` without such an interpreter, and
    RuntimeError with pip's last words where the source of that version cannot be had.
    """
    python = engine_python()
    home, before = kept() / "upstream", _before(wheel, kept()) if wheel else ()
    version = wheel or _installed(python)
    folder = home / version
    if not (folder / "tests").is_dir():
        _download(version, folder)
    (folder / "pytest.ini").write_text(_PYTEST_INI)
    packages = home / "packages"
    _install(python, packages)
    hub = home / "hub"
    _fill_hub(python, hub)
    return Sources(python, version, folder, packages, hub, before)


def _installed(python: str) -> str:
    asked = [python, "-c", "import vllm; print(vllm.__version__)"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[-1].partition("+")[0]


def _before(wheel: str, kept: Path) -> tuple[str, ...]:
    """Return the folder of a wheel's files, behind one that calls it a build for CPUs: vLLM goes by its version."""
    found = unpack(kept / "wheels", wheel, sys.executable)
    named = kept / "upstream" / f"{wheel}-cpu"
    about = named / f"vllm-{wheel}+cpu.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {wheel}+cpu\n")
    return str(named), str(found)


def _download(version: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        # pip has no command that only unpacks a source distribution: it goes on to ask for its metadata, which fails
        # here for want of torch, and keeps what it unpacked.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "vllm", "--no-build-isolation"]
        result = subprocess.run(
            [*command, "--no-clean", "-d", scratch, f"vllm=={version}"],
            env={**os.environ, "TMPDIR": scratch},
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
        found = list(Path(scratch).glob("pip-download-*/vllm_*/tests"))
        if not found:
            raise RuntimeError(f"the source of vLLM {version} could not be had: {result.stderr[-1000:]}")
        staged = Path(scratch) / "staged"
        staged.mkdir()
        # Only the tests: the package next to them would be imported instead of the installed one.
        shutil.move(found[0], staged / "tests")
        staged.rename(folder)


def _install(python: str, packages: Path) -> None:
    stamp = packages / ".installed"
    wanted = _REQUIREMENTS.read_text()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    shutil.rmtree(packages, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--python", python, "--target", str(packages), "-r", str(_REQUIREMENTS)], check=True)
    stamp.write_text(wanted)


def _fill_hub(python: str, hub: Path) -> None:
    for model, configuration in _CONFIGURATIONS.items():
        (_snapshot(hub, model) / "config.json").write_text(json.dumps(configuration))
    tiny = tiny_model(python)
    for model in _RUN:
        snapshot = _snapshot(hub, model)
        for file in tiny.iterdir():
            link = snapshot / file.name
            link.unlink(missing_ok=True)
            if model != _WORD_LEVEL or file.name != "tokenizer.json":
                link.symlink_to(file)
        if model == _WORD_LEVEL:
            arguments = [str(tiny / "config.json"), str(snapshot / "tokenizer.json")]
            subprocess.run([python, "-c", _WORD_TOKENIZER, *arguments], check=True)


def _snapshot(hub: Path, model: str) -> Path:
    base = hub / "hub" / ("models--" + model.replace("/", "--"))
    snapshot = base / "snapshots" / _REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    (base / "refs").mkdir(exist_ok=True)
    (base / "refs" / "main").write_text(_REVISION)
    return snapshot
