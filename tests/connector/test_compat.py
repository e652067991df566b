from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvserving_connector.compat import _band

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("installed", "place", "two_phase", "block_state", "on_new_request", "band", "reason"),
    [
        (True, "m:NixlPullConnector", True, True, True, "full", ""),
        (True, "m:NixlPullConnector", True, False, True, "reduced", "block-state"),
        (True, "m:NixlConnector", False, False, True, "refused", "two-phase"),
        (True, "m:NixlConnector", True, False, False, "refused", "new requests"),
        (True, "", True, True, True, "refused", "no NIXL pull connector"),
        (False, "", False, False, False, "refused", "not importable"),
    ],
)
def test_the_band_follows_from_what_is_there(
    installed: bool, place: str, two_phase: bool, block_state: bool, on_new_request: bool, band: str, reason: str
) -> None:
    found, why = _band("9.9", installed, place, two_phase, block_state, on_new_request)
    assert found == band
    assert reason in why
    assert band != "refused" or "use vLLM 0.24 or newer" in why


@pytest.mark.parametrize("module", ["guard", "drain", "settings", "core.policy", "core.desk", "core.signing", "plugin"])
def test_what_must_be_light_imports_neither_vllm_nor_torch(module: str) -> None:
    code = (
        f"import sys; import kvserving_connector.{module}; "
        "heavy = {'vllm', 'torch', 'nixl'} & set(sys.modules); print(sorted(heavy)); sys.exit(bool(heavy))"
    )
    environment = {"PYTHONPATH": str(ROOT / "connector" / "src"), "PATH": ""}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
