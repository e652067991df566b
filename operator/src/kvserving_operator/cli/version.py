"""``kvserving version``."""

from __future__ import annotations

import platform

import click


@click.command("version")
def command() -> int:
    """Print the version of this command and of its Python."""
    from .. import __version__
    from ..api.v1alpha1 import API_VERSION

    click.echo(f"kvserving {__version__} ({API_VERSION}, Python {platform.python_version()})")
    return 0
