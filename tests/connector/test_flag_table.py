"""The operator's table of vLLM's flags is what the parser of the vLLM in this environment knows."""

from __future__ import annotations

from pathlib import Path

import pytest

vllm = pytest.importorskip("vllm")

from tests.connector.flag_table import recorded  # noqa: E402 - after the skip

from kvserving_operator.engines import flags  # noqa: E402

# A wheel's, where the compatibility lane has put one in front of the installed vLLM.
SITE = Path(vllm.__file__).parents[1]


def test_the_table_has_the_flags_of_this_vllm_and_no_others() -> None:
    version, known = recorded(SITE)
    assert version == vllm.__version__
    table = flags.table()[flags.minor(".".join(version.split(".")[:2]))]
    wrong = sorted(name for name in {*table, *known} if table.get(name) != known.get(name))
    assert wrong == [], "run `make flag-table` with this version among those of engines/catalog.py"
