"""What the documents say of the code is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from kvserving_operator.api import owned, stores
from kvserving_operator.engines import catalog

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_rollouts_list_the_flags_and_variables_of_a_revision() -> None:
    text = (DOCS / "rollouts.md").read_text()
    listed = text.partition("The flags: ")[2].partition("\n\n")[0]
    shared = {flag.shown for flag in owned.FLAGS if flag.allowed == "engine"}
    assert set(re.findall(r"`(--[^`]+)`", listed)) == shared
    [row] = [line for line in text.splitlines() if line.startswith("| `engine.env`")]
    assert set(re.findall(r"`(VLLM_\w+)`", row)) == set(owned.KV_VARIABLES.names)


def test_the_versions_of_vllm_are_those_of_the_catalog() -> None:
    text = (DOCS / "operator.md").read_text().partition("## Versions of vLLM")[2]

    def minor(version: catalog.Version) -> str:
        return f"{version[0]}.{version[1]}"

    major, first_full, _ = catalog.FULL_SUPPORT
    assert f"| {minor(catalog.FULL_SUPPORT)} to {minor(catalog.NEWEST_GPU)} | full |" in text
    assert f"| {minor(catalog.OLDEST)} to {major}.{first_full - 1} | reduced |" in text
    assert f"| before {minor(catalog.OLDEST)} | none |" in text
    gpus, cpus = (", ".join(map(catalog.text, sorted(tested))) for tested in (catalog.TESTED_GPU, catalog.TESTED_CPU))
    assert f"Tested on GPUs: {gpus}; on CPUs: {cpus}." in text
    newest = [catalog.text(v) for v in (catalog.NEWEST_GPU, catalog.NEWEST_CPU, catalog.NEWEST_KVCACHED)]
    assert "gets {}, on CPUs {}, with kvcached {}".format(*newest) in " ".join(text.split())


def test_the_page_of_the_tiers_names_the_scheme_of_each_external_store() -> None:
    text = (DOCS / "tiers.md").read_text()
    assert [scheme for scheme in stores.EXTERNAL if f"`{scheme}://" not in text] == [], "name these in docs/tiers.md"


def test_removal_by_kubectl_takes_all_that_the_bundle_made_but_crds_and_the_namespace() -> None:
    text = (DOCS / "helm.md").read_text()
    commands = text.partition("own=app.kubernetes.io/")[2].partition("```")[0].replace("\\\n", " ").splitlines()
    own = dict(label.split("=") for label in f"app.kubernetes.io/{commands[0]}".split(","))
    namespaced, clusterwide = (set(command.split()[-1].split(",")) for command in commands[1:])
    made = [obj for obj in yaml.safe_load_all((ROOT / "deploy" / "install.yaml").read_text()) if obj]
    kept = {"CustomResourceDefinition", "Namespace"}
    rest = [obj for obj in made if obj["kind"] not in kept]
    assert {obj["kind"].lower() for obj in rest if "namespace" in obj["metadata"]} == namespaced
    assert {obj["kind"].lower() for obj in rest if "namespace" not in obj["metadata"]} == clusterwide
    assert all(own.items() <= obj["metadata"]["labels"].items() for obj in rest)
