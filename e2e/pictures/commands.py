"""Commands as a user types them, run for real, and what they printed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.operator.running import ROOT
from e2e.pictures.terminal import wrapped

_PROGRAMS = {"kvserving": "kvserving", "kubectl kvserving": "kubectl-kvserving"}
COLUMNS = 150


@dataclass(frozen=True)
class Printed:
    """A command with its exit status and what it printed on both outputs; folders of this machine are replaced."""

    command: str
    status: int
    text: str

    def lines(self, columns: int = COLUMNS) -> list[str]:
        """Return the command and what it printed as a terminal of a width shows them."""
        return [f"$ {self.command}", *wrapped(self.text, columns)]


def run(
    program: str,
    *arguments: str,
    kubeconfig: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> Printed:
    """Run ``kvserving`` or ``kubectl kvserving``, in the repository and as an administrator of ``kubeconfig``."""
    name = _PROGRAMS[program]
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    assert found is not None, f"`make install` puts {name} beside the interpreter"
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or ""), **(env or {})}
    done = subprocess.run(
        [found, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Printed(f"{program} {shlex.join(arguments)}", done.returncode, without_folders(done.stdout))


def without_folders(text: str) -> str:
    """Return a text in which this checkout is ``~/kvserving`` and the home ``~``."""
    return text.replace(str(ROOT), "~/kvserving").replace(str(Path.home()), "~")
