"""Reading text: JSON as JSON, merges of bounded size, and standard input like a file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.api.objects import serving

from kvserving_operator.api.faults import Fault, InvalidSpec
from kvserving_operator.api.load import inspect, inspect_stream, load
from kvserving_operator.api.parse import MAX_BYTES, MAX_VALUES, parse

HEAD = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: qwen}\n"


def refusal(text: str) -> str:
    with pytest.raises(InvalidSpec) as raised:
        parse(text)
    (fault,) = raised.value.faults
    return str(fault)


def bomb(keys: int, merges: int) -> str:
    fields = ", ".join(f"k{n}: 1" for n in range(keys))
    return f"a: &a {{{fields}}}\n" + "".join(f"b{n}: {{<<: *a}}\n" for n in range(merges))


@pytest.mark.parametrize(
    "text",
    [
        bomb(20_000, 149),
        bomb(2_000, 149),
        "a: &a {" + ", ".join(f"k{n}: 1" for n in range(20_000)) + "}\nb: {<<: [" + "*a, " * 2_000 + "*a]}\n",
        "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60)),
    ],
    ids=["large", "small", "list", "chain"],
)
def test_merges_that_multiply_are_refused_before_they_are_made(text: str) -> None:
    assert len(text) < MAX_BYTES
    started = time.process_time()
    parse(bomb(20_000, 0))
    without = time.process_time() - started
    started = time.process_time()
    assert f"merges (<<) bring more than {MAX_VALUES} values: write fewer" in refusal(text)
    assert time.process_time() - started < 3 * without + 1


def test_merges_are_made_as_yaml_has_them() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], z: 3}\nd: {<<: [*b, *a]}\ne: {x: 0, <<: *a}\n"
    made = parse(text)
    assert (made["c"], made["d"]) == ({"x": 1, "y": 1, "z": 3}, {"y": 2, "z": 2, "x": 1})
    assert made["e"] == {"x": 0, "y": 1}
    assert parse("a: {b: &b {<<: &c {x: 1}, x: 2}}\nd: {<<: *b}\n") == {"a": {"b": {"x": 2}}, "d": {"x": 2}}
    assert parse("a: &a {<<: *a, x: 1}\n") == {"a": {"x": 1}}
    assert parse("a: {=: 1}\n") == {"a": {"=": 1}}


def test_a_merge_of_what_is_no_map_names_the_line() -> None:
    assert refusal("a: &a [1]\nb:\n  <<: *a\n") == "line 1, column 8: << merges maps only: name one, or a list of them"
    assert refusal("b: {<<: 1}\n").endswith("<< merges maps only: name one, or a list of them")


def test_a_merge_that_is_given_twice_is_refused() -> None:
    text = "a: &a {x: 1}\nb: &b {y: 1}\nc:\n  <<: *a\n  <<: *b\n"
    assert refusal(text) == "line 5, column 3: field '<<' is given twice: keep one with a list, [*a, *b]"


def test_json_with_tabs_is_read() -> None:
    text = json.dumps(serving(), indent="\t")
    assert "\t" in text
    assert load(text, strict=True) == load(serving(), strict=True)


def test_json_has_its_own_escapes() -> None:
    assert parse('{"a": "\\ud83d\\ude00\\/", "b": [1, 2.5, true, null]}') == {"a": "😀/", "b": [1, 2.5, True, None]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n\t"a": 1,\n\t"a": 2\n}', "line 3, column 2: field 'a' is given twice: keep one"),
        ('{"a": 1,\n "a": 2}', "line 2, column 2: field 'a' is given twice: keep one"),
        ('{\n\t"a": [1,\n\t2\n}', "line 4, column 1: not valid JSON: Expecting ',' delimiter"),
    ],
)
def test_a_fault_in_json_names_the_line(text: str, words: str) -> None:
    assert refusal(text) == words


def test_yaml_in_flow_style_keeps_tabs_in_its_texts() -> None:
    assert parse('{a: "x\ty"}') == {"a": "x\ty"}


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": ' + "1" * 5000 + "}", "[" * 100_000])
def test_json_that_kubernetes_does_not_take_is_refused(text: str) -> None:
    assert inspect(text, strict=True).serving is None


@pytest.mark.parametrize(
    ("written", "message"),
    [("010", "'010' is not a whole number: write it as 10"), ("'8'", "'8' is not a whole number: remove the quotes")],
)
def test_a_number_that_is_text_is_told_what_to_write(written: str, message: str) -> None:
    reading = inspect(HEAD + f"spec: {{model: {{uri: 'hf://a/b'}}, decode: {{replicas: {written}}}}}\n", strict=True)
    assert [str(fault) for fault in reading.faults] == [f"spec.decode.replicas: {message}"]


class Endless(io.RawIOBase):
    """A stream without end that counts what is read."""

    taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.taken += len(buffer)
        buffer[:] = b"#" * len(buffer)
        return len(buffer)


def test_a_stream_is_read_no_further_than_needed() -> None:
    source = Endless()
    reading = inspect_stream(io.BufferedReader(source), "standard input", strict=True)
    assert "larger than" in str(reading.faults[0])
    assert source.taken < 2 * MAX_BYTES


def test_a_stream_that_is_no_text_names_stream_and_line() -> None:
    reading = inspect_stream(io.BytesIO(b"a: b\nc: \xff"), "standard input", strict=True)
    assert reading.faults == (Fault("", "standard input: line 2: not UTF-8 text"),)


def validate(stdin: int | None, source: bytes | None = None) -> str:
    """What ``kvserving validate -`` says; without ``stdin`` and ``source`` it is started with none at all."""
    command = [sys.executable, "-m", "kvserving_operator", "validate", "-"]
    if stdin is None and source is None:
        command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(
        command, input=source, stdin=stdin, capture_output=True, timeout=60, check=False, env={**os.environ}
    )
    return (done.stdout + done.stderr).decode()


def test_the_command_says_what_is_wrong_with_standard_input(tmp_path: Path) -> None:
    assert "standard input: cannot be read, it is closed: pipe the object into the command" in validate(None)
    assert f"larger than {MAX_BYTES} bytes" in validate(None, b"#" * (MAX_BYTES + 1))
    with (tmp_path / "file").open("wb") as writable:
        assert "standard input: cannot be read" in validate(writable.fileno())


def test_what_yaml_says_of_tabs_and_of_colons_has_its_way_out() -> None:
    with pytest.raises(InvalidSpec, match=r"line 2, column 1: found character '\\t' .*: indent with spaces$"):
        parse("spec:\n\tmodel: x\n")
    with pytest.raises(InvalidSpec, match=r"could not find expected ':': a field is written with a space behind its"):
        parse("a: 1\nsuspend:true\nb: 2\n")
