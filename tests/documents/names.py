"""Whether what inline code names is there: fields, metrics, alerts, kinds, conditions, options, variables, labels.

Where the code generates a list it is the witness; a word of another kind is to stand in the sources somewhere. Names of
other programs' own are listed with whose they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml
from tests.chart.charts import CHART
from tests.documents.pages import ROOT

from kvserving_operator.api import schema
from kvserving_operator.reference import commands, process, series

FOREIGN: Mapping[str, str] = {
    "--disaggregation-mode": "Dynamo",
    "--ignore-missing": "sha256sum",
    "--prefill-model-labels": "production-stack's router",
    "PdConnector": "Dynamo",
    "PodAutoscaler": "AIBrix",
    "model.lora": "KServe",
    "router.route": "KServe",
    "router.scheduler": "KServe",
    "FailedScheduling": "an event of Kubernetes",
    "UCX_LOG_LEVEL": "UCX",
    "VLLM_ADDITIONAL_ARGS": "llm-d's chart",
    "VLLM_MOONCAKE_": "vLLM's Mooncake connector",
}
"""Names that look like ours or the engine's, stand on a page, and are nowhere in our sources."""

WAY_OUT = (
    "write the name as the code has it (docs/reference-*.md list them); one of another program goes into FOREIGN in "
    "tests/documents/names.py, with whose it is"
)
_SOURCES = (
    ".ci", "benchmarks", "charts", "connector/src", "crds", "deploy", "e2e", "examples", "images", "operator/src",
    "scripts",
)  # fmt: skip
_NO_WITNESS = frozenset({".md", ".jsonl", ".pyc", ".svg", ".png"})
_TOOLS = re.compile(r"(?:docker|git|helm|kubectl|pytest|sha256sum|skopeo)\b(?! kvserving)")
"""Spans that begin with one of these have options of that program."""

_PATH = re.compile(r"(?<![\w/])(?:spec|status)(?:\.[A-Za-z]\w*(?:\[\w*\])?)+")
_SHORT = re.compile(r"(?P<path>[a-z]\w*(?:\.[a-z]\w*)+)(?:[:=].*)?")
"""A whole span that may be a path below ``spec``, without that word."""
_SERIES = re.compile(r"kvserving(?::|_operator_)[a-z{][\w{},]*\*?")
_KIND = re.compile(r"\bKVServing[A-Z]\w*")
_OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*\*?")
_VARIABLE = re.compile(r"\b(?:KVSERVING|NIXL|UCX|VLLM)_[A-Z_]+\b")
_LABEL = re.compile(r"(?<![\w.])kvserving\.dev/[a-z][\w.-]*")
_WORD = re.compile(r"(?<![\w/.-])[A-Z][a-z]+(?:[A-Z][A-Za-z0-9]*)+\b")
_BRACES = re.compile(r"\{([^{}]*)\}")
_FILES = frozenset({"json", "md", "py", "yaml"})
_PROPERTIES = frozenset({"kvserving:commit", "kvserving:file"})
"""Of our SBOMs."""


def faults(span: str) -> Iterator[str]:
    """Say what a span of inline code names that is not there."""
    yield from in_block(span)
    yield from (f"no field is {path}" for path in _PATH.findall(span) if not _field(path.split(".")))
    if (short := _SHORT.fullmatch(span)) and not _short(short["path"].split(".")):
        yield f"no field of spec, and no value of the chart, is {short['path']}"
    if not _TOOLS.match(span):
        yield from (f"no option is {name}" for name in _OPTION.findall(span) if not _option(name))
    yield from (f"no label is {name}" for name in _LABEL.findall(span) if not _in_sources(name))


def in_block(text: str) -> Iterator[str]:
    """Say what a text names that is not there, of the kinds that have one meaning wherever they stand."""
    yield from (f"no metric is {name}" for name in _named_series(text) if not _metric(name))
    yield from (f"no alert or kind is {name}" for name in _KIND.findall(text) if name not in kinds())
    yield from (f"no variable is {name}" for name in _VARIABLE.findall(text) if not _in_sources(name))


def words(span: str) -> Iterator[str]:
    """Say which words in the style of conditions, reasons and classes stand nowhere in our sources."""
    yield from (f"no word of ours is {name}" for name in _WORD.findall(span) if not _in_sources(name))


@cache
def metrics() -> frozenset[str]:
    """Return all series of the connector and of the operator."""
    text = series.render() + process.render()
    return frozenset(re.findall(r"^\| `(kvserving[:_]\w+)`", text, re.MULTILINE)) | _PROPERTIES


@cache
def kinds() -> frozenset[str]:
    """Return the alerts and the kinds of the API."""
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    made = (found["spec"]["names"] for found in schema.definitions().values())
    return frozenset({*alerts, *(name for names in made for name in (names["kind"], names["listKind"]))})


@cache
def sources() -> str:
    """Return the text of everything that may be the witness of a name, and of the reference that is made from it."""
    files = (file for folder in _SOURCES for file in sorted((ROOT / folder).rglob("*")))
    texts = [file.read_text(errors="replace") for file in files if file.is_file() and file.suffix not in _NO_WITNESS]
    return "\n".join([*texts, (ROOT / "Makefile").read_text(), commands.render()])


@cache
def _tokens() -> frozenset[str]:
    return frozenset(re.findall(r"--[A-Za-z][\w-]*|kvserving\.dev/[a-z][\w.-]*|[A-Za-z_]\w*", sources()))


@cache
def _values() -> Mapping[str, Any]:
    read: Mapping[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return read


def is_value(parts: list[str]) -> bool:
    """Whether the chart has a value at a path; below an empty map of it all are."""
    found: Any = _values()
    for part in parts:
        if found == {}:
            return True
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True


def _metric(name: str) -> bool:
    if name.endswith("*"):
        return any(one.startswith(name[:-1]) for one in metrics())
    return name in metrics()


def _option(name: str) -> bool:
    if name.endswith("*"):
        return any(token.startswith(name[:-1]) for token in _tokens())
    return name in FOREIGN or name in _tokens()


def _in_sources(name: str) -> bool:
    return name in FOREIGN or name.rstrip(".") in _tokens()


def _named_series(span: str) -> Iterator[str]:
    """Names in a span, ``{a,b}`` spelled out; what stands in braces at the end are labels."""
    for found in _SERIES.findall(span):
        yield from _spelled(re.sub(r"\{[^{}]*\}?$", "", found))


def _spelled(name: str) -> Iterator[str]:
    choices = _BRACES.search(name)
    if choices is None:
        yield name
        return
    for choice in choices[1].split(","):
        yield from _spelled(name[: choices.start()] + choice + name[choices.end() :])


@cache
def _schemas() -> tuple[Mapping[str, Any], ...]:
    found = schema.definitions().values()
    return tuple(one["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for one in found)


def _field(parts: list[str]) -> bool:
    # As in prose about either role.
    plain = ["prefill" if part == "ROLE" else part for part in parts]
    return plain[-1] in _FILES or any(_resolves(plain, one) for one in _schemas())


def _short(parts: list[str]) -> bool:
    """Whether a path that begins as one of ``spec`` or of a role does leads to a field, or to a value of the chart."""
    spec = schema.object_schema()["properties"]["spec"]
    begun = [node for node in (spec, spec["properties"]["prefill"]) if parts[0] in node["properties"]]
    known = not begun or is_value(parts) or parts[-1] in _FILES or ".".join(parts) in FOREIGN
    return known or any(_resolves(parts, node) for node in begun)


def _resolves(parts: list[str], node: Mapping[str, Any]) -> bool:
    """Whether a path leads to a field; below a map, and where anything may stand, all do."""
    if not parts:
        return True
    if "items" in node:
        return _resolves(parts, node["items"])
    if "additionalProperties" in node or node.get("x-kubernetes-preserve-unknown-fields"):
        return True
    below = node.get("properties", {}).get(parts[0].partition("[")[0])
    return below is not None and _resolves(parts[1:], below)
