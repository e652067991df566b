"""The spec of each revision, kept so that ``rollout undo`` can return to it."""

from __future__ import annotations

import json
from typing import Any

from . import labels
from .context import Context
from .objects import manifest

SPEC_KEY = "spec.json"
"""Key of the ConfigMap that holds the spec."""
KEPT = 3
"""Former specs that stay beside that of the present revision."""


def config_map(ctx: Context) -> dict[str, Any]:
    """The spec as the user wrote it, without what the models fill in. A change within the revision overwrites it."""
    spec = ctx.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    made = manifest(ctx, "v1", "ConfigMap", ctx.names.history, revision=ctx.revision, data={SPEC_KEY: text})
    # A spec may leave the engine to the operator, which goes on with what runs: to return, the choice must be known.
    made["metadata"]["annotations"] = {
        labels.ENGINE_VERSION: ctx.profile.engine_version,
        labels.ENGINE_IMAGE: ctx.profile.engine_image,
    }
    return made
