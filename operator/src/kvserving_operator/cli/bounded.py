"""Types of options that take a number within bounds, with words for what is none."""

from __future__ import annotations

from typing import Any

import click


def _refusal(value: Any, kind: str, least: float | None, most: float | None) -> str:
    from ..api.types import quoted

    bounds = f"from {least:g} to {most:g}" if most is not None else f"of at least {least or 0:g}"
    return f"{quoted(value)} is no {kind}: write one {bounds}"


class Number(click.FloatRange):
    """A finite number of at least ``min``, and of at most ``max`` where that is given."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; ``click.BadParameter`` for what is none, or is out of bounds."""
        from ..engines.written import real

        if (found := real(str(value).strip())) is None:
            self.fail(_refusal(value, "number", self.min, self.max), param, ctx)
        return super().convert(found, param, ctx)


class Count(click.IntRange):
    """A whole number of at least ``min``, and of at most ``max`` where that is given."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; ``click.BadParameter`` for what is none, or is out of bounds."""
        from ..engines.written import whole

        if (found := whole(str(value).strip())) is None:
            self.fail(_refusal(value, "whole number", self.min, self.max), param, ctx)
        return super().convert(found, param, ctx)
