"""``kvserving version``."""

from __future__ import annotations

import platform

import click


@click.command("version")
def command() -> int:
    """Print the version of this command and of its Python."""
    click.echo(text())
    return 0


def text() -> str:
    """Version of this command, of its API and of its Python, in a line."""
    from .. import __version__
    from ..api.identity import API_VERSION

    return f"kvserving {__version__} ({API_VERSION}, Python {platform.python_version()})"
