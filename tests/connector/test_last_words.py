"""What an engine says of its end in its pod's status, and the path of a model at which there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvserving_connector import last_words, model_path, plugin
from kvserving_operator.control import pods


def test_a_sentence_is_kept_with_the_mark_that_the_operator_looks_for(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    last_words.leave("the model is not there", file)
    assert pods.last_words({"message": file.read_text()}) == "the model is not there"


def test_nothing_is_made_where_no_kubelet_made_the_file(tmp_path: Path) -> None:
    last_words.leave("anything", tmp_path / "termination-log")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError("no")

    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(Path, "write_text", refused)
    last_words.leave("anything", file)


def test_a_path_at_which_nothing_is_is_named_with_the_field(tmp_path: Path) -> None:
    said = model_path.missing(["api_server", f"--model={tmp_path}/gone", "--port=1"])
    assert said == f"the model's folder {tmp_path}/gone is not there: correct spec.model.uri, or put the model there"
    assert model_path.missing(["api_server", "--model", f"{tmp_path}/gone"]) == said
    assert f"{tmp_path} is empty" in model_path.missing([f"--model={tmp_path}"])
    (tmp_path / "file").touch()
    assert "cannot be read (Not a directory)" in model_path.missing([f"--model={tmp_path}/file/model"])


def test_what_vllm_may_find_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    for named in (f"{tmp_path}", f"{tmp_path}/model.gguf", f"{tmp_path}/gone:Q4_K", "Qwen/Qwen3-8B", "s3://b/m", ""):
        assert model_path.missing([f"--model={named}"]) == "", named
    assert model_path.missing(["--model"]) == ""
    assert model_path.missing(["--port=1"]) == ""


def test_an_engine_without_its_model_ends_at_once_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    monkeypatch.setattr(plugin, "end_at_sigterm", lambda: None)
    monkeypatch.setattr(last_words, "leave", kept.append)
    monkeypatch.setattr(sys, "argv", ["api_server", f"--model={tmp_path}/gone"])
    with pytest.raises(SystemExit, match=r"KVServing: the model's folder .*/gone is not there"):
        plugin.register()
    assert kept == [f"the model's folder {tmp_path}/gone is not there: correct spec.model.uri, or put the model there"]
