"""Moments for people: in local time, and as an age."""

from __future__ import annotations

import time


def moment(at: float, now: float) -> str:
    """When something was, in local time and as an age."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}, {ago(at, now)}"


def ago(at: float, now: float) -> str:
    """The age of what was at a time."""
    seconds = max(0, int(now - at))
    age = f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
    return f"{age} ago"
