"""``python -m kvserving_operator``, and the commands ``kvserving`` and ``kubectl-kvserving``.

Nothing is imported before Ctrl-C is heeded: the imports take most of the time of a short command.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and end the process with its exit status; see ``cli``."""
    try:
        from .cli import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        _interrupted()


def plugin() -> None:
    """Run the plugin of kubectl and end the process with its exit status; see ``cli.plugin``."""
    try:
        from .cli import run
        from .cli.plugin import PROGRAM, plugin

        sys.exit(run(sys.argv[1:], plugin, PROGRAM))
    except KeyboardInterrupt:
        _interrupted()


def _interrupted() -> None:
    """End as a command does that is interrupted later."""
    print("interrupted", file=sys.stderr)
    sys.exit(130)


if __name__ == "__main__":
    main()
