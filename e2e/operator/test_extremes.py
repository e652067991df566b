"""Generated specs at and beyond every limit: refused, or planned and applied; never a traceback, never a bad child."""

from __future__ import annotations

import itertools
import random
from typing import Any

import hypothesis
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.operator.objects import condition, path_of, serving
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

EXAMPLES = 200

_INTS = st.sampled_from([-1, 0, 1, 2, 63, 64, 1000, 2**31 - 1, 2**31, 2**63 - 1])
_TEXTS = st.text(max_size=12) | st.sampled_from(["", "ключ", "$(HOME)", "a" * 5000, "--x", "\u0000", "{}", "null"])
_SIZES = st.sampled_from(["0", "-1Gi", "1", "8Gi", "0.5Gi", "1e3", "1Ei", "9223372036854775807", "1e30", "8GB"])
_TIMES = st.sampled_from(["0s", "1s", "45m", "1h30m", "999999h", "-1s", "1d", "5"])
_NAMES = st.sampled_from(
    ["a", "b", "c", "d", "a" * 63, "a.b", "1a", "a" * 40 + ".b", "x-" + "y" * 50, "A", "a_b", "a" * 254]
)


def _only(section: str, field: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return values.map(lambda value: {section: {field: value}})


# One extreme at a time: of several, the first refused hides the rest.
_SPECS: st.SearchStrategy[Json] = st.one_of(
    _only("prefill", "replicas", _INTS),
    _only("prefill", "drainTimeout", _TIMES),
    _only("prefill", "startupTimeout", _TIMES),
    _only("decode", "replicas", _INTS),
    _only("decode", "env", st.lists(st.fixed_dictionaries({"name": _TEXTS, "value": _TEXTS}), max_size=2)),
    _only("decode", "env", st.lists(_TEXTS.map(lambda v: {"name": "LEVEL", "value": v}), max_size=1)),
    _only("cache", "l1", _SIZES.map(lambda v: {"size": v})),
    _only("cache", "l2", _SIZES.map(lambda v: {"size": v})),
    _only("router", "replicas", _INTS),
    _only("router", "requestTimeout", _TIMES),
    _only("engine", "args", st.lists(_TEXTS, max_size=3)),
    _only("engine", "image", _TEXTS),
    _only("engine", "version", st.sampled_from(["0", "9.9.9", "0.33.0", ""])),
    _only("model", "name", _TEXTS),
    _only("transfer", "lease", _TIMES),
    _only("transfer", "stagingMemory", _SIZES),
)


def test_extreme_specs_are_refused_or_become_valid_children(
    plane: ControlPlane, namespace: str, start: Any, request: Any
) -> None:
    seed = request.config.getoption("hypothesis_seed", None) or random.getrandbits(32)
    print(f"specs of --hypothesis-seed={seed}")
    # Children are made, and their pods are not: some specs ask for a thousand.
    plane.quota(namespace, {"pods": "0"})
    operator = start("--no-elect")
    numbers = itertools.count()
    refused: list[str] = []
    invalid: list[str] = []
    applied: list[str] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    # The CRD refuses most of what is wrong; these two only the operator does.
    @hypothesis.example(name="stray", spec={"engine": {"args": ["a-value-without-a-flag"]}})
    @hypothesis.example(name="typo", spec={"decode": {"template": {"spec": {"nodeSelectr": {}}}}})
    @hypothesis.given(name=_NAMES, spec=_SPECS)
    def send(name: str, spec: Json) -> None:
        # Objects of one name would wait for each other's children.
        number = str(next(numbers))
        name = f"{name}{number}" if len(name) < 4 else f"{name[: -len(number)]}{number}"
        obj = serving(namespace, name)
        for section, fields in spec.items():
            obj["spec"][section] = {**obj["spec"].get(section, {}), **fields}
        try:
            plane.api.create(obj)
        except ApiError as error:
            if error.status not in (400, 409, 422):
                raise
            print(f"{name}: {str(error)[:300]}")
            refused.append(name)
            return
        found = plane.api.wait(
            path_of(namespace, name),
            lambda o: (o or {}).get("status", {}).get("observedGeneration") == 1,
            what="a status",
        )
        told = condition(found, "ConfigValid")
        (applied if told["status"] == "True" else invalid).append(name)
        assert condition(found, "Degraded").get("reason") != "ApplyFailed", condition(found, "Degraded")["message"]
        plane.api.delete(path_of(namespace, name))

    send()
    assert operator.metric("kvserving_operator_reconciles_total", result="error") == 0, operator.tail()
    assert "Traceback" not in operator.log.read_text()
    print(f"{len(refused)} refused, {len(invalid)} invalid, {len(applied)} applied")
    assert len(refused) > 20
    assert len(invalid) >= 2
    assert len(applied) > 10
