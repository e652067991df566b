from __future__ import annotations

import secrets

from kvserving_operator.local import scratch
from kvserving_operator.local.reaper import end_instance


def test_the_temporary_folder_ends_with_its_run() -> None:
    instance = secrets.token_hex(8)
    folder = scratch.make(instance)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "socket").write_text("left behind")
    end_instance(instance, grace=1.0)
    assert not folder.exists()
    end_instance(instance, grace=1.0)


def test_a_socket_fits_into_the_temporary_folder() -> None:
    instance = secrets.token_hex(8)
    try:
        # vLLM names its sockets after a UUID of 36 characters; a path may have 107 bytes.
        assert len(str(scratch.make(instance))) + 1 + 36 <= 107
    finally:
        scratch.remove(instance)
