"""Transfer verification: proof that decode's KV came from prefill, never a guess from configuration.

``run.verify_local`` checks a service that runs as processes, ``run.verify`` any set of endpoints.
"""

from __future__ import annotations

from .run import Verification, verify, verify_local

__all__ = ["Verification", "verify", "verify_local"]
