"""The three dashboards: the fleet, one service, and its cache."""

from __future__ import annotations

from . import dashboard_cache, dashboard_fleet, dashboard_service


def render() -> dict[str, str]:
    """Return the JSON of each dashboard by its name."""
    return {
        "fleet": dashboard_fleet.render(),
        "service": dashboard_service.render(),
        "cache": dashboard_cache.render(),
    }
