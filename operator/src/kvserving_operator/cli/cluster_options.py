"""The options by which kubectl, and so its plugin, is told which cluster and namespace is meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

_MOST_CHARACTERS = 253


@dataclass(frozen=True)
class Target:
    """Where to look; ``None`` is what the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


def object_name(ctx: click.Context, param: click.Parameter | None, value: str | None) -> str | None:
    """Callback of an option or argument that takes the name of an object, if it is given.

    An empty one, as of a variable that is not set, would ask the apiserver for all objects.
    """
    from ..api.base import NAME_PATTERN

    if value is None or (len(value) <= _MOST_CHARACTERS and re.fullmatch(NAME_PATTERN, value)):
        return value
    told = f"{value[:60]!r} is no name: lowercase letters, digits, dashes and single dots, as `kubectl get` shows"
    raise click.BadParameter(told, ctx, param)


def _namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    # Without one kubectl takes that of the context, too.
    return object_name(ctx, param, value or None)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-n``, ``--context`` and ``--kubeconfig`` to a command, which gets them as ``target``."""

    @click.option(
        "-n", "--namespace", callback=_namespace, metavar="NAME", help="Namespace. Default: that of the context."
    )
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig. Default: the current one.")
    @click.option(
        "--kubeconfig",
        metavar="FILE",
        help="Credentials. Default: $KUBECONFIG, else ~/.kube/config, else the pod's own.",
    )
    @wraps(command)
    def with_target(*args: Any, kubeconfig: str | None, context: str | None, namespace: str | None, **more: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace), **more)

    return with_target
