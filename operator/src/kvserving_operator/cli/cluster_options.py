"""The options by which kubectl, and so its plugin, is told which cluster and namespace is meant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click


@dataclass(frozen=True)
class Target:
    """Where to look; ``None`` is what the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-n``, ``--context`` and ``--kubeconfig`` to a command, which gets them as ``target``."""

    @click.option("-n", "--namespace", metavar="NAME", help="Namespace. Default: that of the context.")
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig. Default: the current one.")
    @click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, else ~/.kube/config, else the pod's own.")
    @wraps(command)
    def with_target(*args: Any, kubeconfig: str | None, context: str | None, namespace: str | None, **more: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace), **more)

    return with_target
