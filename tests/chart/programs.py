"""Programs that the chart's tests run: helm and promtool, each built once from pinned Go modules.

``go.mod`` in ``programs/NAME`` pins them; they are kept in ``${XDG_CACHE_HOME:-~/.cache}/kvserving/programs/<hash>/``.
Without Go, those of PATH are taken. ``python -m tests.chart.programs`` builds both and prints where they are.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from e2e.controlplane.build import BuildFailed, ProgramsMissing, Say, build_into, go_build
from tests.kept import kept

MODULES = Path(__file__).parent / "programs"
Name = Literal["helm", "promtool"]
_PACKAGES: Mapping[Name, str] = {
    "helm": "helm.sh/helm/v4/cmd/helm",
    "promtool": "github.com/prometheus/prometheus/cmd/promtool",
}
# Clients of clouds that promtool would look for targets in: most of its build, and nothing of it is used.
_TAGS: Mapping[Name, str] = {"helm": "", "promtool": "remove_all_sd"}
NAMES: tuple[Name, ...] = ("helm", "promtool")
_FLAGS = "-s -w"


def program(name: Name, environ: Mapping[str, str] = os.environ, *, say: Say | None = None) -> Path:
    """Return the program, built on the first call (minutes). Raises ``ProgramsMissing`` or ``BuildFailed``."""
    folder = cache_folder(name, environ)
    if not folder.is_dir():
        path = environ.get("PATH")
        if shutil.which("go", path=path) is None:
            if found := shutil.which(name, path=path):
                return Path(found)
            raise ProgramsMissing(f"no {name}: install Go to build it, or {name} itself")

        def compile_one(_: str, package: str, output: Path, flags: str) -> None:
            go_build(name, package, output, flags, f"-tags={_TAGS[name]}", module=MODULES / name)

        build_into(folder, {name: _PACKAGES[name]}, say or _say, compile_one, what="chart", flags=_FLAGS)
    return folder / name


def cache_folder(name: Name, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the program of this ``go.mod`` is or will be."""
    key = hashlib.sha256()
    for part in (
        *((MODULES / name / file).read_bytes() for file in ("go.mod", "go.sum")),
        repr((_FLAGS, _TAGS[name], platform.system(), platform.machine())).encode(),
    ):
        key.update(hashlib.sha256(part).digest())
    return kept(environ) / "programs" / f"{name}-{key.hexdigest()[:20]}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        for one in _PACKAGES:
            print(program(one))
    except (ProgramsMissing, BuildFailed) as error:
        sys.exit(str(error))
