"""The name of the model in a service's state."""

from __future__ import annotations

import pytest

from kvserving_operator.local.state import ServiceDir
from kvserving_operator.local.supervisor import Supervisor
from kvserving_operator.local.verifier import verify
from kvserving_operator.plan import labels

from .support import deployment, run_of


@pytest.mark.parametrize(
    ("replicas", "flags", "model"), [(0, (), "tiny"), (1, (), "tiny"), (1, ("--served-model-name=asked",), "asked")]
)
def test_the_model_is_told_by_its_name_also_before_there_is_an_engine(
    directory: ServiceDir, replicas: int, flags: tuple[str, ...], model: str
) -> None:
    decode = deployment("decode", *flags, replicas=replicas)
    decode["metadata"]["annotations"] = {labels.SERVED_MODEL: "tiny"}
    supervisor = Supervisor(run_of(decode, deployment("router")), directory, verify, print)
    assert supervisor.state.served_model == model
