"""Files that are generated into the repository: one way to write them, and to check that they are current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def actions(parser: argparse.ArgumentParser) -> Any:
    """Add ``--write``, ``--check`` and ``--print`` to ``parser``; the group, for one more way of showing the file."""
    group = folder_actions(parser)
    group.add_argument("--print", action="store_true", help="print the file")
    return group


def folder_actions(parser: argparse.ArgumentParser) -> Any:
    """Add ``--write`` and ``--check`` alone, where more than one file is generated; the group, for further ways."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", metavar="FOLDER", type=Path, help="write into FOLDER")
    group.add_argument("--check", metavar="FOLDER", type=Path, help="exit with 1 if FOLDER differs")
    parser.set_defaults(print=False, command=parser.prog)
    return group


def write_or_check(name: str, text: str, options: argparse.Namespace, source: str, target: str = "generate") -> int:
    """Do what ``actions`` added: print ``text``, write it as ``name``, or compare; return the exit status.

    ``source`` is what the file is generated from and ``target`` what make writes it by, for the message if it differs.
    """
    if options.print:
        print(text, end="")
        return 0
    if options.write is not None:
        (options.write / name).parent.mkdir(parents=True, exist_ok=True)
        (options.write / name).write_text(text, encoding="utf-8")
        return 0
    file = options.check / name
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return 0
    print(
        f"{file} differs from {source}: run `make {target}` or `{options.command} --write {options.check}`",
        file=sys.stderr,
    )
    return 1
