"""YAML on a page is what it says it is, by our own loader and plan, by the chart's schema, or by Kubernetes'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.documents.manifests import LANGUAGES, faults
from tests.documents.marks import COMMANDS
from tests.documents.pages import OTHERS, PAGES, Block, blocks, sections, shown
from tests.documents.shell import commands, documents

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


def in_command(command: str) -> list[str]:
    return [fault for text in documents(command) for fault in faults(Block("yaml", text, 1))]


def test_what_a_command_holds_is_looked_at_too() -> None:
    assert in_command(f"kubectl apply -f - <<EOF\n{SERVING}EOF") == []
    assert "spec.decode.replica" in in_command(f"cat >a.yaml <<EOF\n{SERVING.replace('replicas', 'replica')}EOF")[0]
    assert in_command('kubectl patch kvs qwen -p \'{"spec":{"decode":{"replicas":null}}}\'') == []
    assert "spec.decoder" in in_command('kubectl patch kvs qwen -p \'{"spec":{"decoder":{"replicas":3}}}\'')[0]


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_every_yaml_block_is_right(page: Path) -> None:
    found = [block for block in blocks(page.read_text()) if block.language in LANGUAGES]
    assert [(block.line, fault) for block in found for fault in faults(block)] == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_every_document_in_a_command_is_right(page: Path) -> None:
    text = page.read_text()
    found = [
        (block.line, command.text)
        for block in blocks(text)
        if block.language in COMMANDS
        for command in commands(block.text)
    ]
    for section in sections(text):
        found += [(section.line, code) for code in re.findall(r"`(kubectl patch [^`]+)`", section.text)]
    assert [(line, fault) for line, command in found for fault in in_command(command)] == []
