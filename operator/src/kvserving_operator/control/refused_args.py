"""Where a flag stands that vLLM has refused: its fields in place of all that could hold it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..engines import arguments

WAY_OUT = "correct spec.engine.args, or the args of the role"
"""How ``kvserving_connector.command_line`` ends its sentence, which knows the arguments and not their fields."""

_SENTENCE = re.compile(rf"vLLM refuses its command line: (?P<said>.*?)(?: could match .*)?: (?P<out>{WAY_OUT})")


def placed(spec: Mapping[str, Any], role: str, message: str) -> str:
    """``message`` with the fields of ``spec`` in which the refused flags stand, as far as its ``args`` have them.

    ``spec`` is as stored, and ``role`` the one whose pod has said it.
    """
    found = _SENTENCE.search(message)
    if found is None:
        return message
    paths = arguments.named_in(
        found["said"], {f"spec.{section}.args": _args(spec, section) for section in ("engine", role)}
    )
    if not paths:
        return message
    return f"{message[: found.start('out')]}correct {' and '.join(paths)}{message[found.end('out') :]}"


def _args(spec: Mapping[str, Any], section: str) -> list[str]:
    held = spec.get(section)
    args = held.get("args") if isinstance(held, Mapping) else None
    return [str(word) for word in args] if isinstance(args, list | tuple) else []
