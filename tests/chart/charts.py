"""The chart as tests see it: rendered by a real helm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "kvserving-operator"
VALUES = Path(__file__).parent / "values"
NAME = "kvserving-operator"
NAMESPACE = "kvserving-system"
MONITORING = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"))
Json = dict[str, Any]


class Refused(Exception):
    """Helm refused; the message is what it printed."""


@dataclass(frozen=True)
class Helm:
    """A helm that reads no configuration of the user's; ``home`` is its folder."""

    path: Path
    home: Path

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run a command with ``values``; return what it prints. Raises ``Refused``."""
        given = ["--values", "-"] if values is not None else []
        done = subprocess.run(
            [str(self.path), *arguments, *given],
            input=json.dumps(values) if values is not None else "",
            env={"HOME": str(self.home), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise Refused(done.stdout + done.stderr)
        return done.stdout

    def template(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        name: str = NAME,
        namespace: str = NAMESPACE,
        kinds: Iterable[str] = (),
        chart: Path = CHART,
        more: Sequence[str] = (),
    ) -> list[Json]:
        """Return the objects of a release. ``kinds`` are what the cluster has beside its own."""
        has = [argument for kind in kinds for argument in ("--api-versions", kind)]
        text = self.run("template", name, str(chart), "--namespace", namespace, *has, *more, values=values or {})
        return [document for document in yaml.safe_load_all(text) if document]


def value_files() -> dict[str, dict[str, Any]]:
    """Return the values of ``values/*.yaml`` by the file's name: releases that differ much from the defaults."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted(VALUES.glob("*.yaml"))}


def one(objects: Iterable[Json], kind: str, name: str = NAME) -> Json:
    """Return the one object of a kind and name."""
    (found,) = (obj for obj in objects if obj["kind"] == kind and obj["metadata"]["name"] == name)
    return found


def kinds(objects: Iterable[Json]) -> set[str]:
    """Return the kinds that occur."""
    return {str(obj["kind"]) for obj in objects}
