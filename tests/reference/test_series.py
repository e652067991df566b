"""Every series that the connector declares is on the page, once."""

from __future__ import annotations

import re
import subprocess
import sys

from kvserving_connector import declared
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.staging_desk import Direct
from kvserving_connector.store.client import Reason
from kvserving_connector.vllm import series as ours
from kvserving_operator.reference import series

TEXT = series.render()


def test_every_series_of_the_connector_has_one_row() -> None:
    several = [value for name, value in vars(ours).items() if name.startswith("OF_")]
    names = {one.name if one.gauge else f"{one.name}_total" for group in several for one in group}
    names |= {one.name if one.gauge else f"{one.name}_total" for one in ours.CHOICES.values()}
    names |= {"kvserving:guard_refused_total", "kvserving:guard_accepted_total", "kvserving:guard_unanswered_requests"}
    rows = [line for line in TEXT.splitlines() if line.startswith(("| `kvserving:", "| `vllm:"))]
    assert sorted(row.split("`")[1] for row in rows) == sorted(names)
    assert all(row.strip("| ").split(" | ")[3:] for row in rows)


def test_no_series_is_declared_elsewhere() -> None:
    found = {
        path.name
        for path in series.SOURCES.rglob("*.py")
        if re.search(r"""["'](kvserving:|vllm:kv_connector_mc_)""", path.read_text(encoding="utf-8"))
    }
    assert found == {"series.py", "metrics.py"}


def test_every_value_of_a_reason_is_told_with_its_meaning() -> None:
    for kind in (Refusal, Direct, Reason):
        told = declared.meanings(kind)
        assert list(told) == [str(member) for member in kind]
        assert [member for member, text in told.items() if not text] == []
        assert all(f"| `{member}` | {text} |" in TEXT for member, text in told.items())


def test_reasons_that_two_series_share_are_told_once() -> None:
    assert TEXT.count("| `malformed` |") == 1
    assert "`reason` of `kvserving:handoffs_refused_total`: as above, under [Guard](#guard)." in TEXT


def test_the_connectors_list_needs_no_engine() -> None:
    code = (
        "import sys, kvserving_connector.declared as d; d.groups(); print(sorted({'vllm', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(series.SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
