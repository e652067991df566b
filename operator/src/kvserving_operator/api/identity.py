"""What the object is called in a cluster. Without the models, for commands that only name it."""

from __future__ import annotations

GROUP = "kvserving.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "KVServing"
