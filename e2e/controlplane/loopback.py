"""Loopback networks for pods, each for one user at a time on the whole machine: tests run in several processes.

Those of the executor begin at 127.64.0.1, those of pods that are processes at 127.128.0.0.
"""

from __future__ import annotations

import errno
import socket

NETWORKS = tuple(f"127.{second}.0.0/16" for second in range(16, 48))
# Below the ports that tests choose; nothing is ever sent to it.
_PORT = 10239


class Network:
    """A network that nobody else has until ``release``, or until this process ends in whatever way.

    It is held by a socket at its last address. Raises ``OSError`` where all are held.
    """

    def __init__(self) -> None:
        self._holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for network in NETWORKS:
            try:
                self._holder.bind((network.replace("0.0/16", "255.254"), _PORT))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                self._holder.close()
                raise
            self.name = network
            return
        self._holder.close()
        raise OSError(
            errno.EADDRINUSE,
            f"all loopback networks from {NETWORKS[0]} to {NETWORKS[-1]} are in use (UDP port {_PORT} of the last "
            "address of each is bound): end the tests that hold them, or name a network",
        )

    def release(self) -> None:
        """Give it to the next who asks."""
        self._holder.close()
