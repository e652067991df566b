"""From text to plain JSON values, and the bounds that hold for both.

YAML is read as Kubernetes tools read it: no dates and no base-60 numbers (``1:4`` is
text), no duplicate keys, one document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from .faults import Fault, InvalidSpec

MAX_BYTES = 524_288
MAX_DEPTH = 64
MAX_VALUES = 50_000
_UNREADABLE = (
    yaml.YAMLError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_INT64 = range(-(2**63), 2**63)
# Tools keep what they like in these; nothing of it gets into a plan.
_FOREIGN = ("metadata.annotations", "metadata.managedFields", "status")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates, base-60 numbers and duplicate keys, its brackets nested ``MAX_DEPTH`` deep at most."""

    def fetch_flow_collection_start(self, token_class: type[yaml.Token]) -> None:
        # The scanner looks at every open bracket for each token: thousands of them take it minutes.
        if self.flow_level > MAX_DEPTH:
            raise yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else id(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field {key_node.value!r} is given twice: keep one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag.rsplit(":", 1)[1] not in ("timestamp", "int", "float")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]{0,30})$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+\.[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+0123456789."),
)


def parse(text: str) -> Any:
    """Return the value of the only document in ``text`` (YAML or JSON); raise ``InvalidSpec`` with the line."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InvalidSpec([Fault("", f"the file is larger than {MAX_BYTES} bytes: it cannot be one KVServing")])
    try:
        documents = _documents(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidSpec([Fault("", f"{where}{error.problem or error.context or 'not valid YAML'}")]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidSpec([Fault("", f"line {line}: a character is not allowed in YAML: {error.reason}")]) from None
    except _UNREADABLE as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else "a value cannot be read"
        raise InvalidSpec([Fault("", f"not valid YAML: {reason}")]) from None
    if not documents:
        raise InvalidSpec([Fault("", "the file is empty: it must hold one KVServing")])
    if len(documents) > 1:
        raise InvalidSpec(
            [Fault("", f"the file holds {len(documents)} documents: give each KVServing a file of its own")]
        )
    return documents[0]


def _documents(text: str) -> list[Any]:
    return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]


def plain(value: Any) -> tuple[Any, tuple[Fault, ...]]:
    """Return ``value`` as JSON values without nulls in maps, and a fault for every part that is none.

    A text with control characters other than tabs and line ends is a fault as well. Parts with
    a fault are replaced by None. The result is a copy of bounded depth and size.
    """
    faults: list[Fault] = []
    budget = MAX_VALUES

    def visit(item: Any, path: str, depth: int) -> Any:
        nonlocal budget
        budget -= 1
        if budget < 0 or depth > MAX_DEPTH:
            raise _TooBig
        if isinstance(item, Mapping):
            result = {}
            for key, member in item.items():
                if not isinstance(key, str):
                    faults.append(Fault(path, f"field name {str(key)[:60]} is not text: put it in quotes"))
                elif not _is_text(key):
                    faults.append(Fault(path, "a field name is not valid Unicode"))
                elif found := _control(key, path):
                    faults.append(Fault(path, f"a field name {found}"))
                elif member is not None:
                    result[key] = visit(member, join(path, key), depth + 1)
            return result
        if isinstance(item, (list, tuple)):
            return [visit(member, f"{path}[{i}]", depth + 1) for i, member in enumerate(item)]
        problem = _problem(item) or _control(item, path)
        if problem:
            faults.append(Fault(path, problem))
            return None
        return item

    try:
        return visit(value, "", 0), tuple(faults)
    except _TooBig:
        fault = Fault("", f"nested deeper than {MAX_DEPTH} levels or more than {MAX_VALUES} values")
        raise InvalidSpec([fault]) from None


class _TooBig(Exception):
    """The value exceeds ``MAX_DEPTH`` or ``MAX_VALUES``."""


def _problem(item: Any) -> str | None:
    if isinstance(item, str):
        return None if _is_text(item) else "is not valid Unicode text"
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, int):
        return None if item in _INT64 else "is a number beyond 64 bits"
    if isinstance(item, float):
        return None if math.isfinite(item) else "is not a finite number"
    return f"is a {type(item).__name__}, which JSON does not know: put the value in quotes"


def _control(item: Any, path: str) -> str | None:
    found = _CONTROL.search(item) if isinstance(item, str) else None
    if found is None or path.startswith(_FOREIGN):
        return None
    return f"holds the control character U+{ord(found.group()):04X}: remove it"


def _is_text(item: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in item) if not item.isascii() else True


def join(path: str, key: str) -> str:
    """Append ``key`` to ``path``; keys with other than letters, digits, dash and underscore are quoted."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{key[:80]!r}]"
    return f"{path}.{key}" if path else key
