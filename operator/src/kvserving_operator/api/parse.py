"""From text to plain JSON values, and the bounds that hold for both.

YAML is read as Kubernetes tools read it: no dates and no base-60 numbers (``1:4`` is
text), no duplicate keys, one document.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from .faults import Fault, InvalidSpec

MAX_BYTES = 524_288
TOO_LARGE = f"the file is larger than {MAX_BYTES} bytes: it cannot be one KVServing"
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
_WAYS_OUT = {
    "found character '\\t'": ": indent with spaces",
    "could not find expected ':'": ": a field is written with a space behind its colon, such as replicas: 2",
}
"""What to do about what YAML says of a text, by how that begins."""
_INT64 = range(-(2**63), 2**63)
# Tools keep what they like in these; nothing of it gets into a plan.
_FOREIGN = ("metadata.annotations", "metadata.managedFields", "status")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates, base-60 numbers and duplicate keys, of bounded depth and size.

    Brackets are nested ``MAX_DEPTH`` deep at most, and merges (``<<``) bring ``MAX_VALUES`` fields at most.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._merged = 0
        # The nodes stay referenced, so that no other one gets the identity of one that is done.
        self._flat: dict[int, yaml.MappingNode] = {}

    def fetch_flow_collection_start(self, token_class: type[yaml.Token]) -> None:
        # The scanner looks at every open bracket for each token: thousands of them take it minutes.
        if self.flow_level > MAX_DEPTH:
            raise yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put the fields of the maps that ``node`` merges before its own, which win.

        A few names for a large map, merged over and over, would take minutes: what merges bring
        is counted before it is copied.
        """
        if id(node) in self._flat:
            return
        self._flat[id(node)] = node
        _refuse_duplicates(node)
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        sources = [value for key, value in node.value if key.tag == _MERGE]
        for key, _ in own:
            if key.tag == "tag:yaml.org,2002:value":
                key.tag = "tag:yaml.org,2002:str"
        # A map that merges itself meets its own fields alone.
        node.value = own
        brought: list[tuple[yaml.Node, yaml.Node]] = []
        for source in sources:
            # Of several maps the first wins, as the later of two equal fields does.
            for mapping in reversed(source.value) if isinstance(source, yaml.SequenceNode) else (source,):
                if not isinstance(mapping, yaml.MappingNode):
                    raise yaml.constructor.ConstructorError(
                        None, None, "<< merges maps only: name one, or a list of them", mapping.start_mark
                    )
                self.flatten_mapping(mapping)
                self._merged += 1 + len(mapping.value)
                if self._merged > MAX_VALUES:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"merges (<<) bring more than {MAX_VALUES} values: write fewer", source.start_mark
                    )
                brought += mapping.value
        node.value = brought + own


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen: set[object] = set()
    for key_node, _ in node.value:
        key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else id(key_node)
        if key in seen:
            way_out = "keep one with a list, [*a, *b]" if key_node.tag == _MERGE else "keep one"
            raise yaml.constructor.ConstructorError(
                None, None, f"field {str(key_node.value)[:60]!r} is given twice: {way_out}", key_node.start_mark
            )
        seen.add(key)


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
        raise InvalidSpec([Fault("", TOO_LARGE)])
    try:
        documents = _documents(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = error.problem or error.context or "not valid YAML"
        way_out = next((told for beginning, told in _WAYS_OUT.items() if problem.startswith(beginning)), "")
        raise InvalidSpec([Fault("", f"{where}{problem}{way_out}")]) from None
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
    """The documents in ``text``: JSON as JSON has it (tabs, escapes, surrogate pairs), all else as YAML."""
    fault: json.JSONDecodeError | None = None
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text, object_pairs_hook=_json_object)]
        except _GivenTwice:
            # The YAML reader has the line. Tabs stand between the values of JSON only, and never in YAML.
            text = text.replace("\t", " ")
        except json.JSONDecodeError as error:
            fault = error
        except (ValueError, RecursionError):
            # A number of thousands of digits, or brackets without end: refused below, with the place.
            fault = None
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError:
        if fault is None or "\t" not in text:
            raise
        # YAML would blame the first tab.
        where = f"line {fault.lineno}, column {fault.colno}"
        raise InvalidSpec([Fault("", f"{where}: not valid JSON: {fault.msg}")]) from None


class _GivenTwice(Exception):
    """A field of a JSON object is given twice."""


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _GivenTwice
    return found


Steps = tuple[str | int, ...]
"""Where a value stands in another: keys of maps and numbers of entries."""


def plain(value: Any) -> tuple[Any, tuple[Fault, ...], tuple[Steps, ...]]:
    """Return ``value`` as JSON values without nulls in maps, a fault for every part that is none, and where nulls were.

    A text with control characters other than tabs and line ends is a fault as well. Parts with
    a fault are replaced by None. The result is a copy of bounded depth and size.
    """
    faults: list[Fault] = []
    nulls: list[Steps] = []
    budget = MAX_VALUES

    def visit(item: Any, path: str, steps: Steps) -> Any:
        nonlocal budget
        budget -= 1
        if budget < 0 or len(steps) > MAX_DEPTH:
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
                    result[key] = visit(member, join(path, key), (*steps, key))
                else:
                    nulls.append((*steps, key))
            return result
        if isinstance(item, (list, tuple)):
            return [visit(member, f"{path}[{i}]", (*steps, i)) for i, member in enumerate(item)]
        problem = _problem(item) or _control(item, path)
        if problem:
            faults.append(Fault(path, problem))
            return None
        return item

    try:
        return visit(value, "", ()), tuple(faults), tuple(nulls)
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
