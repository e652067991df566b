"""Whether the folder that an engine is to load is there, before vLLM takes its path for a name of the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence

_MODEL = "--model"


def missing(arguments: Sequence[str]) -> str:
    """Return what is wrong with the path that an engine's command line names as its model, empty when nothing is.

    Only a path at which nothing is, or an empty folder, is wrong; what a folder must hold is vLLM's to say. A name that
    is no absolute path is the hub's or a bucket's, and one with a colon may say more than a path: neither is looked at.
    """
    path = _path(arguments)
    if not path.startswith("/") or ":" in path or os.path.isfile(path):
        return ""
    try:
        what = "" if os.listdir(path) else "is empty"
    except FileNotFoundError:
        what = "is not there"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    return what and f"the model's folder {path} {what}: correct spec.model.uri, or put the model there"


def _path(arguments: Sequence[str]) -> str:
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == _MODEL:
            return value if equals else next(iter(arguments[at + 1 :]), "")
    return ""
