"""The two commands as tests call them, and what they say as JSON."""

from __future__ import annotations

import json
from typing import Any

from kvserving_operator import cli
from kvserving_operator.cli.plugin import PROGRAM, plugin

PRIVATE = "s3cr3t-that-nobody-may-see"
"""The value of every Secret in the tests' cluster."""


def kvserving(*arguments: str) -> int:
    """The exit status of the command."""
    return cli.run(arguments)


def kubectl(*arguments: str) -> int:
    """The exit status of the plugin of kubectl."""
    return cli.run(arguments, plugin, PROGRAM)


def findings(text: str) -> dict[str, Any]:
    """The findings of a document, by check."""
    return {finding["check"]: finding for finding in json.loads(text)["findings"]}
