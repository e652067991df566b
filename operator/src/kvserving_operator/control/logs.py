"""Logs: one line per fact, as JSON or text, with the object's name; nothing secret gets through.

Within ``about(key)`` every line, whoever writes it, names the object.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Literal

from ..redaction import redact
from .observe import Key

_KEY: contextvars.ContextVar[Key | None] = contextvars.ContextVar("kvserving_key", default=None)


@contextlib.contextmanager
def about(key: Key) -> Iterator[None]:
    """Name the object ``key`` in every line that is logged within."""
    token = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(token)


class _Context(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        key = _KEY.get()
        record.object_name = f"{key.namespace}/{key.name}" if key is not None else ""
        if record.name.startswith("kopf."):
            # The message has the error; kopf's own stack says nothing to a user, over a hundred lines.
            record.exc_info = None
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, object, error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if name := getattr(record, "object_name", ""):
            line["object"] = name
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = redact("".join(traceback.format_exception(record.exc_info[1])))
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line per record for people; tracebacks follow it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(object_name)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        name = getattr(record, "object_name", "")
        record.object_name = f"[{name}] " if name and not name.startswith("[") else name
        return redact(super().format(record))


def configure(form: Literal["json", "text"], level: str) -> None:
    """Send all logs to standard error in ``form``; our own from ``level`` on, libraries' from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Context())
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(__package__).setLevel(level.upper())
    # kopf warns that it leaves signals alone, which is why it has a thread of its own.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    # The elector reports every failed attempt as an error; the lock says more about each, as a warning.
    logging.getLogger("kubernetes.aio.leaderelection").setLevel(logging.CRITICAL)
