"""``valkey-cli -h HOST -p PORT ping``, for the store's probe where no client is installed."""

from __future__ import annotations

import argparse
import os
import socket
import sys

_TIMEOUT = 3.0


def ping(host: str, port: int, password: str) -> str:
    """Authenticate and ping; return the last line of the answer. Raises ``OSError``."""
    with socket.create_connection((host, port), timeout=_TIMEOUT) as connection, connection.makefile("rwb") as stream:
        if password:
            stream.write(_command("AUTH", password))
            stream.flush()
            answer = stream.readline().decode().strip()
            if not answer.startswith("+"):
                return answer
        stream.write(_command("PING"))
        stream.flush()
        return stream.readline().decode().strip().lstrip("+")


def _command(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in map(str.encode, words):
        parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
    return b"".join(parts)


def main() -> int:
    """Print the answer; return 0 when there was one."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-h", dest="host", required=True)
    parser.add_argument("-p", dest="port", type=int, required=True)
    parser.add_argument("command", choices=["ping"])
    options = parser.parse_args()
    try:
        print(ping(options.host, options.port, os.environ.get("REDISCLI_AUTH", "")))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
