"""A server process that tests hurt: killed, stopped, let go on."""

from __future__ import annotations

import signal
import subprocess


class ServerProcess:
    """A process that its subclass starts, in ``_process``; it may be started again once it has ended."""

    _process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def hang(self) -> None:
        """Stop the process: the kernel still accepts connections for it, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo ``hang``."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self.resume()
            self.kill()
