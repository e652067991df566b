"""YAML on a page is what it says it is, by our own loader and plan, by the chart's schema, or by Kubernetes'."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.documents.manifests import LANGUAGES, faults
from tests.documents.pages import PAGES, Block, blocks, shown

SERVING = """\
apiVersion: kvserving.dev/v1alpha1
kind: KVServing
metadata: {name: qwen}
spec:
  model: {uri: "hf://Qwen/Qwen3-8B"}
  decode: {replicas: 2}
"""


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (SERVING, ""),
        (f"{SERVING}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\n", ""),
        ("spec:\n  cache: {l1: {size: 1Gi}}\n", ""),
        ("cache: {l1: {size: 1Gi}}\n", "yaml: spec"),
        ("image: {tag: 0.1.0}\n", "yaml: values"),
        ("anything: [at, all]\n", "yaml: other"),
        ("apiVersion: example.org/v1\nkind: Unknown\nmetadata: {name: a}\n", ""),
    ],
)
def test_what_is_right_has_no_fault(text: str, mark: str) -> None:
    assert faults(Block("yaml", text, 1, mark)) == []


@pytest.mark.parametrize(
    ("text", "mark", "fault"),
    [
        (SERVING.replace("replicas", "replica"), "", "spec.decode.replica"),
        ("spec:\n  cache: {l1: {size: much}}\n", "", "spec.cache.l1.size"),
        ("spec:\n  engine: {version: 0.20.0}\n", "", "spec.engine.version"),
        ("cache: {l3: {size: 1Gi}}\n", "yaml: spec", "spec.cache.l3"),
        ("cache: {l1: {size: 1Gi}}\n", "", "nothing says what cache belong to"),
        ("imagine: {tag: 0.1.0}\n", "yaml: values", "imagine"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndate: {}\n", "", "date"),
        ("a: [\n", "", "it is no YAML"),
        ("# empty\n", "", "it holds nothing"),
        ("- a\n", "", "it is list, not a mapping"),
        ("a: 1\n", "yaml: nonsense", "the mark 'yaml: nonsense' is none of"),
    ],
)
def test_what_is_wrong_is_named(text: str, mark: str, fault: str) -> None:
    found = faults(Block("yaml", text, 1, mark))
    assert found
    assert fault in found[0]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_yaml_block_is_right(page: Path) -> None:
    found = [block for block in blocks(page.read_text()) if block.language in LANGUAGES]
    assert [(block.line, fault) for block in found for fault in faults(block)] == []
