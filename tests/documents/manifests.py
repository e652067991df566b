"""What is wrong with a YAML block: objects of ours by our own loader and plan, others by schemas.

A block needs no mark when it says itself what it is: a ``KVServing``, a part of one below ``spec:``, objects with
``apiVersion`` and ``kind``. Others have one on the line before the fence:

    <!-- yaml: spec -->      the fields are those of ``spec``
    <!-- yaml: values -->    values of the chart
    <!-- yaml: other -->     a file of another program: read, not judged
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml
from tests.chart.charts import CHART
from tests.documents.pages import Block
from tests.kubernetes_versions import VERSIONS
from tests.kubernetes_versions import faults as kubernetes_faults

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.load import load
from kvserving_operator.api.v1alpha1 import API_VERSION, KIND
from kvserving_operator.plan.planning import check

LANGUAGES = frozenset({"yaml"})
KINDS = ("spec", "values", "other")
_MARKS = ", ".join(f"`<!-- yaml: {kind} -->`" for kind in KINDS)

_NATIVE = {"v1", "apps/v1", "batch/v1", "policy/v1"}
"""Groups that Kubernetes has by itself, beside those below k8s.io."""
_BASE: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "example"},
    "spec": {"model": {"uri": "hf://example-org/example"}, "prefill": {}, "decode": {}},
}


def faults(block: Block) -> list[str]:
    """Return what is wrong with a block."""
    kind = None
    if block.mark:
        word, colon, kind = (part.strip() for part in block.mark.partition(":"))
        if word != "yaml" or not colon or kind not in KINDS:
            return [f"the mark {block.mark!r} is none of {_MARKS}"]
    try:
        documents = [found for found in yaml.safe_load_all(block.text) if found is not None]
    except yaml.YAMLError as error:
        return [f"it is no YAML: {error}"]
    if not documents:
        return ["it holds nothing"]
    return [fault for document in documents for fault in _faults(document, kind)]


def _faults(document: Any, kind: str | None) -> Iterator[str]:
    if kind == "other":
        return
    if not isinstance(document, dict):
        yield f"it is {type(document).__name__}, not a mapping"
    elif kind == "values":
        yield from _values(document)
    elif kind == "spec":
        yield from _serving(_merged(_BASE, {"spec": document}))
    elif set(document) == {"spec"}:
        yield from _serving(_merged(_BASE, document))
    elif document.get("kind") == KIND:
        yield from _serving(document)
    elif {"apiVersion", "kind"} <= set(document):
        yield from _kubernetes(document)
    else:
        yield f"nothing says what {', '.join(map(str, document))} belong to: write {_MARKS} before the fence"


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(base[key], more[key])
        for key in base
        if isinstance(base[key], dict) and isinstance(more.get(key), dict)
    }
    return {**base, **more, **both}


def _serving(document: dict[str, Any]) -> Iterator[str]:
    try:
        serving = load(document, strict=True)
    except InvalidSpec as error:
        yield from map(str, error.faults)
    else:
        yield from map(str, check(serving))


def _values(document: dict[str, Any]) -> Iterator[str]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    # As helm does: the schema is that of the defaults with the values over them.
    values = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), document)
    for error in jsonschema.Draft202012Validator(schema).iter_errors(values):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def _kubernetes(document: dict[str, Any]) -> Iterator[str]:
    group = str(document["apiVersion"])
    if group in _NATIVE or group.partition("/")[0].endswith(".k8s.io"):
        for version in (VERSIONS[0], VERSIONS[-1]):
            yield from (f"Kubernetes {version}: {fault}" for fault in kubernetes_faults([document], version))
