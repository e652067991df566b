"""Writes or checks the generated pages: ``python -m kvserving_operator.reference --write docs``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import generated
from . import commands, engines, fields, process, series
from .markdown import Undescribed


def pages() -> dict[str, str]:
    """Return the text of every generated page by the name of its file."""
    return {page.PAGE: page.render() for page in (process, fields, commands, engines, series)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages in the named folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_operator.reference", description="Generated pages.")
    generated.folder_actions(parser)
    options = parser.parse_args(arguments)
    try:
        made = pages()
    except (series.NoConnector, Undescribed) as error:
        print(error, file=sys.stderr)
        return 1
    return max(generated.write_or_check(name, text, options, "the declarations") for name, text in made.items())


if __name__ == "__main__":
    sys.exit(main())
