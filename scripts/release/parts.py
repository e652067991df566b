"""What a release consists of, made from an exported tree: wheels, chart and manifests, each with its SBOM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.release import archives, sbom
from scripts.release.source import Source

CHART = "kvserving-operator"
SUMS = "SHA256SUMS"


class BuildFailed(Exception):
    """A part could not be built; the message ends with what its builder said."""


def build(source: Source, tree: Path, output: Path) -> None:
    """Write wheels, chart and manifests of ``tree`` into ``output``, with their SBOMs. Raises ``BuildFailed``."""
    for folder in ("operator", "connector"):
        sbom.of_wheel(_wheel(tree / folder, output, source), tree / "requirements" / "operator.txt", source)
    installed = (tree / "deploy" / "install.yaml").read_text(encoding="utf-8")
    chart = chart_file(output, source)
    archives.write_tgz(chart, tree / "charts" / CHART, CHART, source.epoch)
    sbom.of_manifests(chart, CHART, installed, source)
    definitions = "".join(_documents(tree / "crds"))
    for name, text in (("crds", definitions), ("install", installed)):
        file = output / f"kvserving-{name}-{source.version}.yaml"
        file.write_text(text, encoding="utf-8")
        sbom.of_manifests(file, f"kvserving-{name}", text, source)


def chart_file(output: Path, source: Source) -> Path:
    """Return where the chart is, under the name that Helm gives it."""
    return output / f"{CHART}-{source.version}.tgz"


def write_sums(folder: Path) -> None:
    """Write the checksums of all files of ``folder``, as ``sha256sum --check`` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = [f"{archives.sha256(file)}  {file.name}\n" for file in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _wheel(project: Path, output: Path, source: Source) -> Path:
    before = set(output.glob("*.whl"))
    # Not by pip: it would fetch the build backend, and the one of requirements/bootstrap.txt is here.
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(output)],
        cwd=project,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)},
        capture_output=True,
        text=True,
        check=False,
    )
    made = set(output.glob("*.whl")) - before
    if done.returncode or len(made) != 1:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BuildFailed(f"the wheel of {project.name}/ was not built ({done.returncode}):\n{tail}")
    [wheel] = made
    return wheel


def _documents(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("*.yaml")):
        yield f"---\n{file.read_text(encoding='utf-8').strip()}\n"
