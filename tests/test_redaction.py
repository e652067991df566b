from __future__ import annotations

import subprocess
import sys

import pytest

from kvserving_operator.redaction import redact


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


def test_redaction_imports_no_other_module_of_the_operator() -> None:
    code = "import sys\nimport kvserving_operator.redaction\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in out.stdout.split() if name.startswith("kvserving_operator")}
    assert ours == {"kvserving_operator", "kvserving_operator.redaction"}
