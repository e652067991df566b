"""Programs of the system that the pictures need, and an error that names the package of each."""

from __future__ import annotations

import shutil


class Missing(Exception):
    """A program is not here; the message names Debian's package of it."""

    def __init__(self, program: str, package: str) -> None:
        super().__init__(f"no {program}: install it, on Debian by `apt-get install {package}`")


def check() -> None:
    """Raise ``Missing`` for the first program that is not here: before a run of minutes, not after it."""
    for program in ("prometheus", "chromium", "pngquant"):
        if shutil.which(program) is None:
            raise Missing(program, program)
