"""The chart's fixtures: see ``fixtures``."""

from tests.chart.fixtures import helm, promtool, pytest_collection_finish

__all__ = ["helm", "promtool", "pytest_collection_finish"]
