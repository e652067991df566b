"""What an engine says in its pod's status of a command line that vLLM refuses, by vLLM's own parser."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvserving_connector import command_line, last_words, plugin
from kvserving_connector.command_line import without_values
from kvserving_operator.control import pods, refused_args

pytest.importorskip("vllm")

SECRET = "hunter2"


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Returns what the operator reads of an API server's end that was given ``arguments``."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    file = tmp_path / "termination-log"
    monkeypatch.setattr(FlexibleArgumentParser, "error", FlexibleArgumentParser.error)
    leave = last_words.leave
    monkeypatch.setattr(last_words, "leave", lambda sentence: leave(sentence, file))
    monkeypatch.setattr(plugin, "end_at_sigterm", lambda: None)

    def run(*arguments: str) -> str:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser

        file.write_text("")
        monkeypatch.setattr(sys, "argv", ["api_server", *arguments])
        # As at the start of an engine: the parser is made, which loads plugins, and then parses.
        monkeypatch.setattr("vllm.plugins.plugins_loaded", False)
        parser = make_arg_parser(FlexibleArgumentParser(prog="api_server"))
        plugin.register()
        with pytest.raises(SystemExit) as ended:
            parser.parse_args()
        assert ended.value.code == 2
        assert SECRET not in file.read_text()
        return pods.last_words({"message": file.read_text()})

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-such-flag=1"], "unrecognized arguments: --no-such-flag=***"),
        (["--no-such-flag", SECRET, "--other"], "unrecognized arguments: --no-such-flag --other"),
        (["model", f"--no-such-key={SECRET} {SECRET}"], "unrecognized arguments: --no-such-key=***"),
        ([SECRET, SECRET], "unrecognized arguments: ***"),
        (["--max-num-seqs=many"], "argument --max-num-seqs: invalid int value: ***"),
        ([f"--max-num-seqs={SECRET}"], "argument --max-num-seqs: invalid int value: ***"),
        (["--port"], "argument --port: expected one argument"),
        ([f"--kv-transfer-config={SECRET}"], "argument --kv-transfer-config: its value *** is refused"),
    ],
)
def test_a_refused_command_line_is_told_with_its_flag_and_no_value(
    refused: object, arguments: list[str], said: str
) -> None:
    assert callable(refused)
    told = refused(*arguments)
    assert told == f"vLLM refuses its command line: {said}: correct spec.engine.args, or the args of the role"
    # The operator puts the field in its place.
    assert told.endswith(refused_args.WAY_OUT)


@pytest.mark.parametrize("argument", ["--no-such-flag", "--port"])
def test_a_worker_whose_command_has_a_parser_below_another_says_so_too(
    monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    kept: list[str] = []
    monkeypatch.setattr(FlexibleArgumentParser, "error", FlexibleArgumentParser.error)
    monkeypatch.setattr(last_words, "leave", kept.append)
    parser = FlexibleArgumentParser(prog="vllm")
    make_arg_parser(parser.add_subparsers().add_parser("serve"))
    command_line.tell_refusals()
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", "model", argument])
    assert len(kept) == 1
    assert argument in kept[0]


def test_choices_are_told_and_the_one_that_was_given_is_not() -> None:
    message = f"argument --dtype: invalid choice: '{SECRET}' (choose from auto, half)"
    assert without_values(message) == "argument --dtype: invalid choice: *** (choose from auto, half)"


def test_a_sentence_that_may_hold_a_value_is_left_to_the_log() -> None:
    assert without_values(f"cannot read {SECRET}") == "argparse's sentence is in the log"
    assert without_values("the following arguments are required: model") == (
        "the following arguments are required: model"
    )
    assert without_values(f"ambiguous option: --api={SECRET} could match --api-key, --api-server-count") == (
        "ambiguous option: --api could match --api-key, --api-server-count"
    )


def test_a_vllm_without_the_parser_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.utils.argparse_utils", None)
    command_line.tell_refusals()
    assert "a refused flag is told in the log alone" in caplog.text
