from __future__ import annotations

import json
import logging

from kvserving_operator.control.logs import JsonFormatter, about
from kvserving_operator.control.logs import _Context as Context
from kvserving_operator.control.observe import Key


def test_a_line_names_the_object_it_is_about() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "made %s", ("it",), None)
    with about(Key("prod", "qwen")):
        Context().filter(record)
    line = json.loads(JsonFormatter().format(record))
    assert line["object"] == "prod/qwen"
    assert line["message"] == "made it"
    assert line["level"] == "info"
