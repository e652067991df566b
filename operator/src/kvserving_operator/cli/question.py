"""Questions to the person at the terminal."""

from __future__ import annotations

import click


def confirmed(question: str) -> bool:
    """Ask for yes or no; the answer. Where none can be given, as with ``</dev/null``, say which option answers it."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise
        click.echo(err=True)
        raise click.UsageError("no answer can be given here: use --yes") from None
