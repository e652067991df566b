"""References to variables in arguments, as Kubernetes expands them."""

from __future__ import annotations

import re
from collections.abc import Mapping


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` as Kubernetes does: ``$$`` is a dollar sign, unknown names stay as they are."""

    def replace(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return variables.get(match.group(1), match.group(0))

    return re.sub(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", replace, text)
