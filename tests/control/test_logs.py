from __future__ import annotations

import json
import logging

import pytest

from kvserving_operator.control.logs import JsonFormatter, about, redact
from kvserving_operator.control.logs import _Context as Context
from kvserving_operator.control.observe import Key


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnop",
        "sk-abcdefghijklmnop",
        "ghp_abcdefghijklmnopqrst",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    ],
)
def test_what_looks_like_a_token_is_masked(secret: str) -> None:
    assert secret not in redact(f"a request with {secret} failed")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
        ("password=hunter22", "hunter22"),
        ("--api-key=abcdefgh", "abcdefgh"),
        ("redis://user:hunter22@host:6379", "hunter22"),
    ],
)
def test_what_is_named_as_a_secret_is_masked(text: str, secret: str) -> None:
    assert secret not in redact(text)


@pytest.mark.parametrize(
    "text",
    ["patch secrets prod/qwen-keys: not found", "Secret qwen-keys has no key api-key: create it", "0 of 2 tokens"],
)
def test_ordinary_sentences_stay(text: str) -> None:
    assert redact(text) == text


def test_a_line_names_the_object_it_is_about() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "made %s", ("it",), None)
    with about(Key("prod", "qwen")):
        Context().filter(record)
    line = json.loads(JsonFormatter().format(record))
    assert line["object"] == "prod/qwen"
    assert line["message"] == "made it"
    assert line["level"] == "info"
