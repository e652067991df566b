"""What an engine says of a command line that vLLM refuses: vLLM's own sentence, without a value.

argparse prints its sentence and ends with status 2, which tells whoever looks at the pod nothing. vLLM loads its
plugins before it parses, so that this is there in time. A value may be a key or a password, and is ``***``.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from kvserving_connector import last_words
from kvserving_connector.settings import logger

MASK = "***"
_FLAG = re.compile(r"(--?[A-Za-z][\w.+-]*)(=.*)?", re.DOTALL)
_UNKNOWN = "unrecognized arguments: "
_ABOUT = re.compile(r"argument (?P<name>[\w./+-]+): (?P<rest>.*)", re.DOTALL)
_REQUIRED = re.compile(r"(the following arguments are required|one of the arguments): ?[\w ,./-]+.*")
_AMBIGUOUS = re.compile(r"ambiguous option: (?P<flag>--?[\w.+-]+)(=.*)? could match (?P<names>[\w ,.+-]+)", re.DOTALL)
_PLAIN = re.compile(r"expected (one argument|at (most|least) one argument|\d+ arguments?)|not allowed with argument .*")
_CHOICE = re.compile(r"invalid choice: (?P<value>.*?) \((?P<choices>choose from .*)\)", re.DOTALL)
_KIND = re.compile(r"invalid (?P<kind>\w+) value: .*", re.DOTALL)
_WAY_OUT = "correct spec.engine.args, or the args of the role"


def tell_refusals() -> None:
    """Let vLLM's parser of arguments leave its sentence for the pod's status before it ends. Idempotent."""
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError as error:
        logger.warning("KVServing: a refused flag is told in the log alone, vLLM has no such parser: %s", error)
        return
    refuse = FlexibleArgumentParser.error
    if hasattr(refuse, "__wrapped__"):
        return

    @functools.wraps(refuse)
    def leave_and_refuse(parser: Any, message: str) -> None:
        last_words.leave(f"vLLM refuses its command line: {without_values(message)}: {_WAY_OUT}")
        refuse(parser, message)

    FlexibleArgumentParser.error = leave_and_refuse


def without_values(message: str) -> str:
    """Return argparse's ``message`` with flags, kinds and choices in it, and no value that was given.

    A sentence that is not known to be free of values is left out.
    """
    if message.startswith(_UNKNOWN):
        words = message.removeprefix(_UNKNOWN).partition("\n")[0].split()
        shown = [f"{flag[1]}={MASK}" if flag[2] else flag[1] for word in words if (flag := _FLAG.fullmatch(word))]
        return _UNKNOWN + (" ".join(shown) or MASK)
    if found := _AMBIGUOUS.fullmatch(message):
        return f"ambiguous option: {found['flag']} could match {found['names']}"
    if found := _ABOUT.fullmatch(message):
        return f"argument {found['name']}: {_sentence(found['rest'])}"
    return message if _REQUIRED.fullmatch(message) else "argparse's sentence is in the log"


def _sentence(rest: str) -> str:
    if _PLAIN.fullmatch(rest):
        return rest
    if found := _CHOICE.fullmatch(rest):
        return f"invalid choice: {MASK} ({found['choices']})"
    if found := _KIND.fullmatch(rest):
        return f"invalid {found['kind']} value: {MASK}"
    return f"its value {MASK} is refused"
