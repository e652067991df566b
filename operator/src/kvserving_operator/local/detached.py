"""A supervisor of its own: ``python -m kvserving_operator.local.detached STATE_DIR LOCK_DESCRIPTOR``.

Reads the run from standard input and writes each state as a line of JSON to standard
output until the reader goes away. Started by ``client.start_detached``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from .errors import LocalError
from .output import lasting
from .run import Run
from .state import ServiceDir, State
from .supervisor import Supervisor
from .verifier import verify


def main() -> int:
    """Run the service; exit status 0 after a stop, 1 after a failure."""
    base, lock = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)
    run = Run.from_json(sys.stdin.read())
    starter = _Starter()
    with lasting():
        try:
            asyncio.run(Supervisor(run, ServiceDir(run.name, base), verify, starter.tell).run())
        except LocalError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            starter.close()
    return 0


class _Starter:
    """The command that started us, for as long as it listens."""

    def __init__(self) -> None:
        self._descriptor: int | None = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(self, state: State) -> None:
        if self._descriptor is None:
            return
        data = (json.dumps(state.as_dict()) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


if __name__ == "__main__":
    sys.exit(main())
