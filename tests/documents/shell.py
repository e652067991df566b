"""The commands of a block, as a reader would type them, and what the block shows that they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

ELSEWHERE = "in a shell of its own"
"""A comment behind a command that does not end: the others do not wait for it."""

_PROMPT = "$ "
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(?P<word>\w+)\1")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_OURS = frozenset({"kvs", "kvserving", "kvservings"})
_SEPARATORS = frozenset({"|", "||", "&", "&&", ";", "(", ")", "|&"})


@dataclass(frozen=True)
class Command:
    """A command, all its lines, and the lines that the block shows as its output."""

    text: str
    output: tuple[str, ...] = ()

    @property
    def elsewhere(self) -> bool:
        """Whether it is for a shell of its own."""
        return ELSEWHERE in self.text.rpartition("#")[2]


def commands(text: str) -> list[Command]:
    """Return the commands of a block.

    With prompts (``$ ``) all other lines are output. Without, every line is one, except for comments.
    Raises ``ValueError`` for a quote or a here-document that is never closed.
    """
    lines = iter(text.splitlines())
    prompted = any(line.startswith(_PROMPT) for line in text.splitlines())
    found: list[Command] = []
    for line in lines:
        if prompted and not line.startswith(_PROMPT):
            if found and line:
                found[-1] = Command(found[-1].text, (*found[-1].output, line))
        elif prompted or (line.strip() and not line.lstrip().startswith("#")):
            found.append(Command(_whole(line.removeprefix(_PROMPT) if prompted else line, lines)))
    return found


def _whole(line: str, rest: Iterator[str]) -> str:
    """Return the command that begins with ``line``; takes from ``rest`` what belongs to it."""
    command = line
    while _goes_on(command):
        try:
            command += f"\n{next(rest)}"
        except StopIteration:
            raise ValueError(f"the command is never finished: {line!r}") from None
    return command


def _goes_on(command: str) -> bool:
    if command.endswith("\\"):
        return True
    if here := _HEREDOC.search(command):
        return here["word"] not in command.splitlines()[1:]
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def calls(command: str) -> list[list[str]]:
    """Return the words of each program that a command calls, without redirections and variables set before it.

    What a here-document holds is not part of it.
    """
    if here := _HEREDOC.search(command):
        command = command[: here.start()] + command.splitlines()[0][here.end() :]
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    target = False
    for word in lexer:
        if word in _SEPARATORS or "\n" in word:
            found.append([])
        elif set(word) <= {"<", ">", "&", "|"}:
            target = True
        elif target:
            target = False
        elif found[-1] or not re.match(r"\w+=", word):
            found[-1].append(word)
    return [words for words in found if words]


def documents(command: str) -> list[str]:
    """Return the YAML or JSON that a command holds: a here-document for a file or ``-f -``, and what ``-p`` patches."""
    found = []
    here = _HEREDOC.search(command)
    if here and re.search(r"-f ?-|--filename[ =]-|\.ya?ml\b|kvserving \w+ -(?!\S)", command.splitlines()[0]):
        lines = command.splitlines()[1:]
        found.append("\n".join(lines[: [line.strip() for line in lines].index(here["word"])]))
    for words in calls(command):
        if words[:2] == ["kubectl", "patch"] and any(word.partition("/")[0] in _OURS for word in words):
            found += [after for word, after in pairwise(words) if word in ("-p", "--patch")]
            found += [word.partition("=")[2] for word in words if word.startswith(("-p=", "--patch="))]
    return found


def unlike(shown: tuple[str, ...], printed: str) -> str | None:
    """Return the first shown line that was not printed, in order; ``None`` when all were.

    Numbers may be others and spaces more or fewer; a line ``...`` or ``…`` stands for any lines.
    """
    left = iter([_loose(line) for line in printed.splitlines()])
    for line in shown:
        wanted = _loose(line)
        if wanted not in ("...", "…") and wanted not in left:
            return line
    return None


def _loose(line: str) -> str:
    return " ".join(_NUMBER.sub("0", line).split())
