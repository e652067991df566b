"""Where the image of a planned container is written: a field of the object, a value of the chart, or nowhere."""

from __future__ import annotations

from .roles import PREFETCH
from .storage import VALKEY_IMAGE

CONNECTOR = "connector"
_ENGINE = "spec.engine.image, which is vLLM's own of spec.engine.version where it is not set"
_OF_ENGINES = {
    "engine": _ENGINE,
    PREFETCH: _ENGINE,
    CONNECTOR: "connector.image of the operator's chart, which is no field of the object",
}
_OF_OTHERS = {
    ("router", "router"): "spec.router.image, which is that of spec.router.type where it is not set",
    ("store", "store"): (
        f"{VALKEY_IMAGE}, which no field sets: let nodes mirror it, or name a store of yours in spec.cache.l2.url"
    ),
}


def image_source(role: str, container: str) -> str:
    """Return where the image of a container is written, for conditions and for doctor.

    ``role`` is prefill, decode, router or store. Empty for a container that no plan makes: a template's, a webhook's.
    """
    if role in ("prefill", "decode"):
        return _OF_ENGINES.get(container, "")
    return _OF_OTHERS.get((role, container), "")
