"""The commands of the quick start for a GPU host, in order, by a shell on such a host.

    python -m e2e.gpu.page [--models FOLDER]

Run by an interpreter with the operator's requirements and the router, with ``KVSERVING_ENGINE_PYTHON`` for the engines.
Blocks marked ``run: gpu`` are run in a folder and a home of their own, with ``kvserving`` from this checkout. The host
reaches no hub: the example's model is one of this host with random weights, under the same name, as the page's table
says for weights that are on the machine already. The exit status is 1 when a command does not do what the page says.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.documents.lanes import of_lane
from tests.documents.pages import shown
from tests.documents.session import Failed, Session
from tests.kept import kept

CHECKOUT = Path(__file__).parents[2]
EXAMPLE = "examples/gpu-host.yaml"
COMMAND_SECONDS = 480.0
SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
"""Off: a host without a network does not have what FlashInfer compiles its sampler from."""


def main() -> int:
    """Run the pages of the lane; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu.page", description="The quick start for a GPU host.")
    parser.add_argument("--models", type=Path, default=kept() / "models")
    arguments = parser.parse_args()
    engines = os.environ.get("KVSERVING_ENGINE_PYTHON")
    if not engines:
        parser.error("set KVSERVING_ENGINE_PYTHON to the interpreter of the engines")
    made = subprocess.run(
        [engines, "-m", "e2e.gpu.models", "qwen3-4b", str(arguments.models)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        return followed(Path(folder), Path(engines), Path(made.stdout.splitlines()[-1]))


def followed(folder: Path, engines: Path, model: Path) -> int:
    """Follow the pages in ``folder``; return the exit status."""
    environment = prepared(folder, engines, model)
    for page, marked in of_lane("gpu").items():
        with Session(folder, environment) as session:
            try:
                for block, how in marked:
                    began = time.monotonic()
                    session.follow(block, how, shown(page), COMMAND_SECONDS)
                    print(
                        f"{shown(page)}, the block at line {block.line}: {time.monotonic() - began:.1f} s", flush=True
                    )
            except Failed as fault:
                print(fault, file=sys.stderr)
                return 1
            finally:
                session.run("kvserving down --all", COMMAND_SECONDS)
    return 0


def prepared(folder: Path, engines: Path, model: Path) -> dict[str, str]:
    """Lay out what the page takes for given, the example with a local model; return the shell's variables.

    ``model`` gets the name of the example's model, and so does what is served.
    """
    found = re.search(r'uri: "hf://[^/"]+/([^"]+)"', text := (CHECKOUT / EXAMPLE).read_text())
    assert found is not None, f"{EXAMPLE} has no model of the hub"
    local = folder / "models" / found[1]
    for place in (local.parent, folder / "bin", folder / "examples"):
        place.mkdir()
    local.symlink_to(model)
    engine = f'  engine:  {{env: [{{name: {SAMPLER}, value: "0"}}]}}\n'
    (folder / EXAMPLE).write_text(text.replace(found[0], f'uri: "file://{local}"').rstrip("\n") + "\n" + engine)
    (folder / "kvserving-engine").symlink_to(engines.parents[1])
    command = folder / "bin" / "kvserving"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvserving_operator "$@"\n')
    command.chmod(0o755)
    sources = os.pathsep.join(str(CHECKOUT / part / "src") for part in ("operator", "connector"))
    return {
        "HOME": str(folder),
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": sources,
        "KVSERVING_STATE_DIR": str(folder / "state"),
        "HF_HUB_OFFLINE": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
