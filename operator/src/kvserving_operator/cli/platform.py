"""What the executor needs of the system."""

from __future__ import annotations

import sys

from ..local.errors import EnvironmentFault


def require_linux() -> None:
    """Raise ``EnvironmentFault`` on systems other than Linux."""
    if sys.platform != "linux":
        raise EnvironmentFault(
            f"running services as processes needs Linux; this is {sys.platform}. `kvserving validate` and"
            " `kvserving render` work here, and a cluster runs the same file by `kubectl apply`"
        )
