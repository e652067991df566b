"""The chart's fixtures: see ``fixtures``."""

from tests.chart.fixtures import checkov, helm, promtool, pytest_collection_finish

__all__ = ["checkov", "helm", "promtool", "pytest_collection_finish"]
