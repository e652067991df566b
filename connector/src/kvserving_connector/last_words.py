"""What a container says of its own end, for whoever looks at its pod: a sentence, in the pod's status.

The kubelet keeps what a container has written into ``/dev/termination-log``, 4096 bytes at most:
https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/. The operator shows what
begins with ``MARK`` in the object's conditions. Never a prompt, a key or an answer: statuses are read by many.
"""

from __future__ import annotations

from pathlib import Path

from kvserving_connector.settings import logger

MARK = "KVServing: "
FILE = Path("/dev/termination-log")


def leave(sentence: str, file: Path = FILE) -> None:
    """Keep ``sentence``, one line, for the pod's status. Outside a container there is no file, and none is made."""
    if not file.is_file():
        return
    try:
        file.write_text(f"{MARK}{sentence}\n", encoding="utf-8", errors="replace")
    except OSError as error:
        logger.warning("KVServing: the reason of this end is in the log alone, %s cannot be written: %s", file, error)
