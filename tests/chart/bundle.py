"""The manifests for those without Helm: ``deploy/install.yaml``, rendered from the chart with its defaults.

``python -m tests.chart.bundle --write deploy`` (``make bundle``) writes the file; it needs helm, which needs Go once.
``deploy/kustomization.yaml`` beside it is a base for Kustomize and names this one file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from e2e.controlplane.build import BuildFailed, ProgramsMissing
from tests.chart import programs
from tests.chart.charts import CHART, NAMESPACE, Helm, Json

from kvserving_operator import generated

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
    header = "# Rendered from charts/kvserving-operator by `make bundle`; do not edit.\n"
    return header + yaml.dump_all(objects(helm, chart), Dumper=generated.Dumper, sort_keys=False, width=100_000)


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
    generated.actions(parser)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        try:
            text = render(Helm(programs.program("helm"), Path(home)))
        except (ProgramsMissing, BuildFailed) as error:
            print(error, file=sys.stderr)
            return 1
    return generated.write_or_check(FILE_NAME, text, options, "the chart")


def differing(first: Iterable[Json], second: Iterable[Json]) -> list[str]:
    """Return the names of the objects that only one side has, or that differ."""

    def by_name(found: Iterable[Json]) -> dict[str, Json]:
        return {f"{obj['kind']}/{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}": obj for obj in found}

    left, right = by_name(first), by_name(second)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


if __name__ == "__main__":
    sys.exit(main())
