"""A page's shell: what one command sets the next one sees, and nothing of it outlives the session."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest
from tests.documents.marks import Run
from tests.documents.pages import Block
from tests.documents.session import Failed, Session

SECONDS = 20


def test_commands_share_folder_variables_and_functions(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with Session(tmp_path, {"GIVEN": "yes"}) as session:
        session.run("cd below; export SET=1; said() { echo said; }", SECONDS)
        done = session.run('said; echo "$SET $GIVEN"; pwd', SECONDS)
    assert done.status == 0
    assert done.printed.splitlines() == ["said", "1 yes", str(tmp_path / "below")]


def test_status_and_both_streams_are_told(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        assert session.run("echo out; echo err >&2; false  # fails", SECONDS).status == 1
        assert session.run("false | cat", SECONDS).status == 1
        assert session.run("printf 'no end of line'", SECONDS).printed == "no end of line"


def test_a_command_does_not_read_the_next_ones(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        assert session.run("cat", SECONDS).printed == ""
        assert session.run("cat <<EOF\nhere\nEOF", SECONDS).printed == "here\n"


def test_a_command_that_does_not_end_is_told_and_ended(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"did not end within 0\.5 s"), Session(tmp_path) as session:
        session.run("echo $BASHPID >pid; sleep 1000", 0.5)
    _gone(tmp_path)


def test_a_command_elsewhere_runs_beside_the_next_ones_and_ends_with_the_session(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Session(tmp_path) as session:
        session.run("echo $BASHPID >pid; echo told >pipe; sleep 1000  # in a shell of its own", SECONDS, elsewhere=True)
        assert session.run("cat <pipe", SECONDS).printed == "told\n"
    _gone(tmp_path)


def test_a_command_that_ends_the_shell_is_told(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="ended the shell"), Session(tmp_path) as session:
        session.run("exit 3", SECONDS)


def test_a_block_fails_where_a_command_fails_and_says_which(tmp_path: Path) -> None:
    block = Block("console", "touch first\nls missing  # says why\ntouch second", 7)
    with Session(tmp_path) as session, pytest.raises(Failed, match=r"a.md, the block at line 7: `ls missing") as error:
        session.follow(block, Run("unit"), "a.md", SECONDS)
    assert "ended with 2" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_blocks_output_is_compared_where_its_mark_asks(tmp_path: Path) -> None:
    block = Block("console", "$ echo took 3 s\ntook 5   s\n$ echo other\nanother", 1)
    with Session(tmp_path) as session:
        session.follow(block, Run("unit"), "a.md", SECONDS)
        with pytest.raises(Failed, match="`echo other` did not print 'another'"):
            session.follow(block, Run("unit", output=True), "a.md", SECONDS)


def test_names_stand_for_the_values_of_the_mark(tmp_path: Path) -> None:
    block = Block("console", "$ echo kvs/NAME NAMES\nkvs/tiny NAMES", 1)
    with Session(tmp_path) as session:
        session.follow(block, Run("unit", {"NAME": "tiny"}, output=True), "a.md", SECONDS)
        with pytest.raises(ValueError, match="no command of the block has OTHER"):
            session.follow(block, Run("unit", {"OTHER": "tiny"}), "a.md", SECONDS)


def _gone(folder: Path) -> None:
    """Fail unless the process has ended; one that has closed its files may be about to."""
    try:
        process = os.pidfd_open(int((folder / "pid").read_text()))
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], SECONDS)[0], "it runs"
    finally:
        os.close(process)
