"""The manifests for those without Helm: ``deploy/install.yaml``, rendered from the chart with its defaults.

``python -m tests.chart.bundle --write deploy`` (``make bundle``) writes the file; it needs helm, which needs Go once.
Its second line is a digest of what it was rendered from, by which ``--current deploy`` (``make check``) sees without
helm that the chart has changed since.
``deploy/kustomization.yaml`` beside it is a base for Kustomize and names this one file.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from e2e.controlplane.build import BuildFailed, ProgramsMissing
from tests.chart import programs
from tests.chart.charts import CHART, NAMESPACE, Helm, Json

from kvserving_operator import generated, plain_yaml

FILE_NAME = "install.yaml"
_FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount")
_RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}


def objects(helm: Helm, chart: Path = CHART) -> list[Json]:
    """Return the objects of the bundle: those of a release, without Helm's own marks, and the namespace."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": _RESTRICTED}}
    made = helm.template({"test": {"enabled": False}}, chart=chart)
    return sorted((namespace, *map(_plain, made)), key=lambda obj: (_rank(obj), obj["kind"], obj["metadata"]["name"]))


def render(helm: Helm, chart: Path = CHART) -> str:
    """Return the text of the file."""
    text = yaml.dump_all(objects(helm, chart), Dumper=plain_yaml.Dumper, sort_keys=False, width=100_000)
    return f"# Rendered from charts/kvserving-operator by `make bundle`; do not edit.\n{digest(chart)}{text}"


def digest(chart: Path = CHART) -> str:
    """Return the line that tells from what the bundle was rendered: the chart, without what its defaults leave out."""
    found = hashlib.sha256()
    templates = (file for file in (chart / "templates").iterdir() if file.suffix in (".yaml", ".tpl"))
    for file in sorted((chart / "Chart.yaml", chart / "values.yaml", *templates)):
        content = file.read_bytes()
        found.update(f"{file.relative_to(chart)} {len(content)}\n".encode() + content)
    return f"# Chart: sha256 {found.hexdigest()}\n"


def is_current(folder: Path, chart: Path = CHART) -> bool:
    """Whether the file in ``folder`` was rendered from the chart as it is."""
    file = folder / FILE_NAME
    return file.is_file() and file.read_text(encoding="utf-8").splitlines(keepends=True)[1:2] == [digest(chart)]


def _rank(obj: Json) -> int:
    return _FIRST.index(obj["kind"]) if obj["kind"] in _FIRST else len(_FIRST)


def _plain(obj: Json) -> Json:
    metadata = obj["metadata"]
    template = obj.get("spec", {}).get("template", {}).get("metadata", {})
    for marked in (metadata, template):
        for part in ("labels", "annotations"):
            if left := {key: value for key, value in marked.get(part, {}).items() if not _of_helm(key, value)}:
                marked[part] = left
            else:
                marked.pop(part, None)
    return obj


def _of_helm(key: str, value: str) -> bool:
    return key.startswith("helm.sh/") or (key == "app.kubernetes.io/managed-by" and value == "Helm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the file in the named folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chart.bundle", description="The manifests without Helm.")
    group = generated.actions(parser)
    group.add_argument("--current", metavar="FOLDER", type=Path, help="exit with 1 if the chart changed since; no helm")
    options = parser.parse_args(arguments)
    if options.current is not None:
        if is_current(options.current):
            return 0
        print(f"{options.current / FILE_NAME} was rendered from another chart: run `make bundle`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as home:
        try:
            text = render(Helm(programs.program("helm"), Path(home)))
        except (ProgramsMissing, BuildFailed) as error:
            print(error, file=sys.stderr)
            return 1
    return generated.write_or_check(FILE_NAME, text, options, "the chart", "bundle")


def differing(first: Iterable[Json], second: Iterable[Json]) -> list[str]:
    """Return the names of the objects that only one side has, or that differ."""

    def by_name(found: Iterable[Json]) -> dict[str, Json]:
        return {f"{obj['kind']}/{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}": obj for obj in found}

    left, right = by_name(first), by_name(second)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


if __name__ == "__main__":
    sys.exit(main())
