"""The progress thread of CPU engines, with real NIXL agents."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")
api = pytest.importorskip("nixl._api", reason="NIXL is not installed here")

from kvserving_connector.vllm.progress import DELAY_MICROSECONDS, patient_progress_thread  # noqa: E402

pytestmark = pytest.mark.engine


def _config_class() -> Any:
    return api.nixl_agent.__init__.__globals__["nixlBind"].nixlAgentConfig


def test_the_delay_is_kept_only_inside() -> None:
    before = _config_class()
    with patient_progress_thread(api.nixl_agent):
        config = _config_class()()
        config.pthrDelay = 0
        assert config.pthrDelay == DELAY_MICROSECONDS
        config.listenPort = 7
        assert config.listenPort == 7
    assert _config_class() is before


def test_the_class_is_put_back_after_a_failure() -> None:
    before = _config_class()
    with pytest.raises(RuntimeError, match="broken"), patient_progress_thread(api.nixl_agent):
        raise RuntimeError("broken")
    assert _config_class() is before


def test_a_nixl_without_the_setting_is_left_alone() -> None:
    class Other:
        pass

    with patient_progress_thread(Other):
        assert Other()
