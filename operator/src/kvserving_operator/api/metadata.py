"""Labels and annotations, of an object and of the pods it makes, as Kubernetes takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .base import LABEL_KEY_PATTERN
from .faults import Fault
from .parse import join

MOST_ANNOTATIONS = 256 * 1024
"""Bytes that all annotations of an object may have together."""

_KEY = re.compile(LABEL_KEY_PATTERN)
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LONGEST_DOMAIN = 253


def faults(metadata: Any) -> Iterator[Fault]:
    """Faults in labels and annotations of ``metadata``, a value of any form at ``metadata`` of an object."""
    for kind in ("labels", "annotations"):
        values = metadata.get(kind) if isinstance(metadata, Mapping) else None
        if values is None:
            continue
        if not isinstance(values, Mapping):
            yield Fault(f"metadata.{kind}", f"must be a map of keys and texts, such as {kind}: {{team: search}}")
            continue
        for key, value in values.items():
            if value is not None and not isinstance(value, str):
                yield Fault(join(f"metadata.{kind}", str(key)), "the value is not text: put it in quotes")
        yield from of_map(values, f"metadata.{kind}", labels=kind == "labels")


def of_map(values: Any, path: str, *, labels: bool) -> Iterator[Fault]:
    """Faults in keys, texts and size of ``values``, labels or annotations at ``path``; types are not looked at."""
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if not is_key(str(key), annotation=not labels):
            message = "is no key of a label or annotation: use one such as team or example.com/team"
            yield Fault(path, f"{str(key)[:60]!r} {message}", str(key)[:60])
        elif labels and isinstance(value, str) and not _VALUE.fullmatch(value):
            message = "is no value of a label: at most 63 letters, digits, dashes, dots and underscores"
            yield Fault(join(path, str(key)), f"{value[:60]!r} {message}", value[:60])
    size = 0 if labels else sum(_bytes(key) + _bytes(value) for key, value in values.items())
    if size > MOST_ANNOTATIONS:
        message = "that annotations may have together: keep long texts in a ConfigMap"
        yield Fault(path, f"{size} bytes are more than the {MOST_ANNOTATIONS} {message}", str(size))


def is_key(key: str, *, annotation: bool) -> bool:
    """Whether ``key`` may be the key of a label, or of an annotation, whose domain may have capital letters."""
    domain, slash, _ = key.partition("/")
    return bool(_KEY.fullmatch(key.lower() if annotation else key)) and not (slash and len(domain) > _LONGEST_DOMAIN)


def _bytes(text: Any) -> int:
    return len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0
