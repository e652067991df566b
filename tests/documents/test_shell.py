"""Commands are taken out of blocks as readers type them, with the output that the block shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.documents.marks import COMMANDS
from tests.documents.pages import PAGES, blocks, shown
from tests.documents.shell import Command, calls, commands, documents, unlike


def test_without_prompts_every_line_but_comments_is_a_command() -> None:
    text = "# first\nmake demo    # brings it up\n\nmake test\n"
    assert commands(text) == [Command("make demo    # brings it up"), Command("make test")]


def test_with_prompts_all_else_is_output() -> None:
    text = "$ kubectl get kvs\nNAME\n\n# tiny\n$ true\n"
    assert commands(text) == [Command("kubectl get kvs", ("NAME", "# tiny")), Command("true")]


@pytest.mark.parametrize(
    "command",
    [
        "curl http://localhost \\\n  -d '{}'",
        "curl -d '{\n  \"a\": 1\n}' localhost",
        "kubectl apply -f - <<EOF\nkind: 'A\nEOF",
        "cat <<'END' | sed s/a/b/\n$a\nEND",
    ],
)
def test_a_command_may_have_several_lines(command: str) -> None:
    assert commands(f"true\n{command}\nfalse\n") == [Command("true"), Command(command), Command("false")]


@pytest.mark.parametrize("command", ["echo 'never closed", "cat <<EOF\nnever", "true \\"])
def test_a_command_that_is_never_finished_is_told(command: str) -> None:
    with pytest.raises(ValueError, match="never finished"):
        commands(command)


def test_a_comment_says_that_a_command_wants_a_shell_of_its_own() -> None:
    [first, second] = commands("kubectl port-forward svc/a 1:2   # in a shell of its own\ntrue  # in this shell\n")
    assert first.elsewhere
    assert not second.elsewhere


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("A=1 kvserving up x.yaml --detach  # it", [["kvserving", "up", "x.yaml", "--detach"]]),
        ("a && b || c; d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a --b \\\n  'c d'", [["a", "--b", "c d"]]),
        ("a > out.txt 2>&1 b", [["a", "b"]]),
        ("x=$(a b) && c", [["a", "b"], ["c"]]),
        ("a -f - <<EOF\nb; c\nEOF", [["a", "-f", "-"]]),
        ("# nothing", []),
    ],
)
def test_the_programs_that_a_command_calls(command: str, called: list[list[str]]) -> None:
    found = [[word for word in words if not word.isdigit()] for words in calls(command)]
    assert found == called


@pytest.mark.parametrize(
    ("command", "held"),
    [
        ("kubectl apply -n a -f - <<EOF\nkind: A\nEOF", ["kind: A"]),
        ("cat > one.yaml <<'END'\na: 1\nb: 2\nEND", ["a: 1\nb: 2"]),
        ("kvserving validate - <<EOF\nkind: A\nEOF", ["kind: A"]),
        ("cat > one.env <<EOF\nA=1\nEOF", []),
        ("kubectl patch kvs a --type=merge -p '{\"spec\":{}}'", ['{"spec":{}}']),
        ("kubectl patch kvs/a --patch='{}'  # back", ["{}"]),
        ("kubectl patch deployment a -p '{}'", []),
    ],
)
def test_the_documents_that_a_command_holds(command: str, held: list[str]) -> None:
    assert documents(command) == held


def test_output_is_compared_in_order_but_for_numbers_and_spaces() -> None:
    printed = "NAME   AGE\ntiny   31s\nother\nok 1,297 of 1297 tokens, 0.0009 s\n"
    assert unlike(("NAME AGE", "tiny 4s"), printed) is None
    assert unlike(("tiny   1s", "...", "ok 5 of 5 tokens, 2.5 s"), printed) is None
    assert unlike(("other", "NAME AGE"), printed) == "NAME AGE"
    assert unlike(("ok 5 of 5 tokens, many s",), printed) == "ok 5 of 5 tokens, many s"


def repeated(text: str) -> list[str]:
    """Return the commands that stand in a block more than once, comments behind them aside."""
    found = [" ".join(line.partition(" #")[0].split()) for line in (command.text for command in commands(text))]
    return sorted({command for command in found if found.count(command) > 1})


def test_a_command_that_stands_twice_is_found() -> None:
    assert repeated("make demo  # here\nmake test\nmake demo    # and there\n") == ["make demo"]
    assert repeated("$ true\nout\n$ true\nout\n") == ["true"]
    assert repeated("make demo\nmake demo KEEP=1\n# make demo\n") == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_no_command_stands_twice_in_a_block(page: Path) -> None:
    found = [block for block in blocks(page.read_text()) if block.language in COMMANDS]
    assert [(block.line, command) for block in found for command in repeated(block.text)] == []
