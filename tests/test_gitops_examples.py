"""The examples for Argo CD and Flux: images of a registry of one's own, and no reference to what is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
GITOPS = ROOT / "examples" / "gitops"
DEFAULTS = yaml.safe_load((ROOT / "charts/kvserving-operator/values.yaml").read_text())


def objects(folder: str) -> list[dict[str, Any]]:
    return [o for file in sorted((GITOPS / folder).glob("*.yaml")) for o in yaml.safe_load_all(file.read_text())]


def values(folder: str) -> dict[str, Any]:
    """The values that the operator's chart gets."""
    specs = [o["spec"] for o in objects(folder) if o["kind"] in ("Application", "HelmRelease")]
    given = [spec.get("values") or spec.get("source", {}).get("helm", {}).get("valuesObject") for spec in specs]
    (found,) = [one for one in given if one]
    return dict(found)


@pytest.mark.parametrize("folder", ["argocd", "flux"])
def test_both_images_come_from_a_registry_that_is_to_be_named(folder: str) -> None:
    given = values(folder)
    assert set(given) <= set(DEFAULTS)
    for mine, default in (
        (given["image"], DEFAULTS["image"]),
        (given["connector"]["image"], DEFAULTS["connector"]["image"]),
    ):
        assert set(mine) == {"repository"}, "the tag is that of the chart"
        assert mine["repository"] == f"registry.example/{default['repository']}"


def test_what_flux_is_referred_to_is_made_by_the_files() -> None:
    made = {(o["kind"], o["metadata"]["name"]) for o in objects("flux")}
    steps = [o["spec"] for o in objects("flux") if o["kind"] == "Kustomization"]
    sources = [spec["sourceRef"] for spec in steps]
    sources += [o["spec"]["chart"]["spec"]["sourceRef"] for o in objects("flux") if o["kind"] == "HelmRelease"]
    named = {(source["kind"], source["name"]) for source in sources}
    named |= {("Kustomization", needed["name"]) for spec in steps for needed in spec.get("dependsOn", ())}
    named |= {("Namespace", spec["targetNamespace"]) for spec in steps if "targetNamespace" in spec}
    assert len(named) == 4
    assert named <= made
