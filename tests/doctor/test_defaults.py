"""A default that a finding tells is that of the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.doctor.test_cluster_checks import of_cluster
from tests.doctor.test_spec_checks import told
from tests.doctor.world import SPEC
from tests.plan.support import edited

from kvserving_operator.api.data_spec import Transfer
from kvserving_operator.api.engines_spec import Engine
from kvserving_operator.doctor import checks
from kvserving_operator.doctor.findings import Severity
from kvserving_operator.engines import catalog

LEASE = Transfer().lease
SOURCES = sorted(Path(str(checks.__file__)).parent.glob("*.py"))


@pytest.mark.parametrize(
    ("apart", "severity"), [(LEASE.seconds, Severity.WARNING), (LEASE.seconds + 1, Severity.ERROR)]
)
def test_clocks_that_differ_by_more_than_the_default_lease_are_an_error(apart: float, severity: Severity) -> None:
    finding = of_cluster(clocks={"a": 0.0, "b": float(apart)})["clocks-differ"]
    assert finding.severity is severity
    assert f"({LEASE} by default)" in finding.why


def test_a_lease_that_is_short_is_told_with_the_default() -> None:
    assert f"; {LEASE} is the default" in told(edited(SPEC, "transfer.lease", "5s"))["lease-short"].fix


def test_the_version_that_has_all_of_the_connector_is_the_catalogs() -> None:
    spec = edited(edited(SPEC, "cache", {}), "engine", {"version": catalog.text(catalog.OLDEST)})
    old = told(spec)["notice-ReducedEngineSupport"]
    assert all(f"{catalog.text(catalog.FULL_SUPPORT)} or newer" in text for text in (old.what, old.fix))


def test_the_device_that_findings_call_the_default_is_it() -> None:
    text = "\n".join(path.read_text() for path in SOURCES)
    named = re.findall(r"device (\w+)(?: \(the default\)|, which is the default)", text)
    assert named
    assert set(named) == {Engine().device}


def test_no_finding_writes_a_time_down_as_a_default() -> None:
    repeated = re.compile(r"\d+ ?(?:s|m|h) (?:by default|is the default)|default (?:of|is) \d+ ?(?:s|m|h)\b")
    assert [(path.name, found) for path in SOURCES for found in repeated.findall(path.read_text())] == []
