"""A page as a PNG: by headless Chromium, with as few colors as it needs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.pictures.programs import Missing

_SECONDS = 120
_COLORS = "64"


def shoot(html: str, size: tuple[int, int], picture: Path) -> None:
    """Write the picture of a page of a size in pixels. Raises ``Missing``, and ``RuntimeError`` when Chromium fails."""
    chromium, pngquant = shutil.which("chromium"), shutil.which("pngquant")
    if chromium is None:
        raise Missing("chromium", "chromium")
    if pngquant is None:
        raise Missing("pngquant", "pngquant")
    with tempfile.TemporaryDirectory() as folder:
        page, raw = Path(folder) / "page.html", Path(folder) / "raw.png"
        page.write_text(html, encoding="utf-8")
        # Without its sandbox, which root has not: the page is ours, and takes nothing from a network.
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder}/profile", f"--window-size={size[0]},{size[1]}", f"--screenshot={raw}"),
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if not raw.exists():
            raise RuntimeError(f"Chromium ended with {done.returncode} and made no picture:\n{done.stderr[-2000:]}")
        subprocess.run(
            [pngquant, "--force", "--strip", "--speed=1", f"--output={picture}", _COLORS, str(raw)],
            check=True,
            timeout=_SECONDS,
        )
