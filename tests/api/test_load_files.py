"""Files are read whole or refused; paths of models in them become absolute."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.api.objects import HEAD, SPEC, load_file, serving
from tests.api.refusals import refusal_of

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.load import load
from kvserving_operator.api.parse import MAX_BYTES


@pytest.mark.parametrize(
    ("uri", "resolved"),
    [
        ("file:models/qwen", "file:///{base}/models/qwen"),
        ("file://models/qwen", "file:///{base}/models/qwen"),
        ("file:./a/../b", "file:///{base}/b"),
        ("file:~/m", "file:///{home}/m"),
        ("file://~/m", "file:///{home}/m"),
        ("file:///abs/m", "file:///abs/m"),
        ("file:/abs/m", "file:///abs/m"),
        ("file:///../../m", "file:///m"),
        ("hf://a/b", "hf://a/b"),
    ],
)
def test_file_uris_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, resolved: str) -> None:
    home, base = tmp_path / "home", tmp_path / "base"
    base.mkdir()
    monkeypatch.setenv("HOME", str(home))
    file = base / "serving.yaml"
    file.write_text(yaml.safe_dump(serving({"spec.model.uri": uri, "spec.model.loras": [{"name": "a", "uri": uri}]})))
    model = load_file(file).spec.model
    expected = resolved.format(base=str(base)[1:], home=str(home)[1:])
    assert (model.uri, model.loras[0].uri) == (expected, expected)


def test_a_relative_file_uri_without_a_folder_is_refused() -> None:
    assert "spec.model.uri" in refusal_of("spec.model.uri", "file:models/qwen")


def test_the_mapping_of_the_caller_is_not_changed(tmp_path: Path) -> None:
    source = serving({"spec.model.uri": "file:m"})
    load(source, strict=True, base_dir=tmp_path)
    assert source["spec"]["model"]["uri"] == "file:m"


def test_files_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: b\nc: \xff\xfe")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 5))
    for path, words in (
        (tmp_path / "none.yaml", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (Path("a\0b"), "cannot be read"),
        (binary, "line 2: not UTF-8"),
        (large, "larger than"),
    ):
        with pytest.raises(InvalidSpec, match=words):
            load_file(path)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + (HEAD + SPEC).encode())
    assert load_file(file).metadata.name == "qwen"
