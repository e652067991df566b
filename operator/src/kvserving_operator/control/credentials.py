"""How a cluster is reached: by a kubeconfig's context, or by the service account of the pod that this runs in.

The client's loader names in its errors what it was reading, at times with all that stands there: no text of its errors
about a file's content is shown, and what is wrong with it is looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.kube_config import KubeConfigMerger
from yaml import YAMLError

from .config import Config

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NO_FILE = re.compile("File does not exists?: (.*)")
_UNLIKE = (ConfigException, YAMLError, ValueError, TypeError, KeyError, AttributeError)


class NoCredentials(Exception):
    """The connection to a cluster cannot be set up from what was named; the message says why and the way out."""


async def configuration(config: Config, *, context: str | None = None) -> Configuration:
    """Return the connection settings: those of ``config.kubeconfig``, else of the pod's service account.

    ``context`` is that of the kubeconfig to use, without it the current one. Raises ``NoCredentials`` when neither can
    be read; its message quotes nothing of the file but names.
    """
    # The class hands out copies of one default; this process has no other user of it.
    settings: Any = Configuration()
    if config.kubeconfig is None:
        in_cluster: Any = load_incluster_config
        try:
            in_cluster(client_configuration=settings)
        except (ConfigException, OSError) as error:
            raise NoCredentials(f"the pod's service account: {error}; name a file with --kubeconfig") from None
    else:
        await _load(config.kubeconfig, context, settings)
    settings.connection_pool_maxsize = max(16, config.workers * 4)
    # kopf's connection does the same. Proxies come from the kubeconfig; with the environment's, every request would
    # read ~/.netrc as well, and could send a password from there.
    settings.client_session_kwargs = {"trust_env": False}
    return settings  # type: ignore[no-any-return]


def client(settings: Configuration) -> ApiClient:
    """Return a client for ``settings``. Raises ``NoCredentials`` when its certificates cannot be read."""
    build: Any = ApiClient
    try:
        return build(configuration=settings)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise NoCredentials(f"certificates for {settings.host} cannot be read: {error}") from None


def namespace_of(kubeconfig: Path | None, context: str | None) -> str | None:
    """The namespace that the context (without it the current one) names, or that of the pod; ``None`` without one."""
    if kubeconfig is None:
        file = SERVICE_ACCOUNT / "namespace"
        return file.read_text().strip() if file.is_file() else None
    content = _content(kubeconfig)
    namespace = _named(content, "contexts", context or content.get("current-context")).get("namespace")
    return str(namespace) if namespace else None


async def _load(kubeconfig: Path, context: str | None, settings: Any) -> None:
    """Let the client's loader fill ``settings``, once the file's references lead somewhere."""
    where, what = f"kubeconfig {kubeconfig}", "it is no kubeconfig"
    load: Any = load_kube_config
    try:
        # The loader takes a context whose cluster has no server for one on this machine.
        if (fault := _fault(_content(kubeconfig), context)) is not None:
            raise NoCredentials(f"{where}: {fault}")
        what = "the credentials of its user are not as they should be"
        await load(config_file=str(kubeconfig), context=context, client_configuration=settings)
    except OSError as error:
        raise NoCredentials(f"{where}: {error}; name a file with --kubeconfig") from None
    except _UNLIKE as error:
        # Both take a file of another shape apart without looking.
        gone = _NO_FILE.fullmatch(str(error))
        told = f"{gone[1]} does not exist" if gone else type(error).__name__
        raise NoCredentials(f"{where} cannot be read ({told}): {what}") from None


def _content(kubeconfig: Path) -> Mapping[str, Any]:
    """All files of ``kubeconfig``, merged as the client merges them."""
    merge: Any = KubeConfigMerger
    content: Mapping[str, Any] = merge(str(kubeconfig)).config.value
    return content


def _named(content: Mapping[str, Any], kind: str, name: object) -> Mapping[str, Any]:
    """The entry of this name among ``kind``; empty where there is none, or where it holds nothing."""
    # Merged entries are the client's nodes, which know where they were read.
    entries = (entry.value for entry in content[kind])
    found = next((entry.get(kind.removesuffix("s")) for entry in entries if entry["name"] == name), None)
    return found or {}


def _fault(content: Mapping[str, Any], context: str | None) -> str | None:
    """The first reference that leads nowhere."""
    known = [str(entry.value["name"]) for entry in content["contexts"]]
    chosen = context or content.get("current-context")
    if not chosen:
        return f"no context is its current one: name one of {_list(known)} with --context"
    if chosen not in known:
        whose = "there is no context" if context else "its current context is missing:"
        return f"{whose} {chosen}: name one of {_list(known)} with --context"
    found = _named(content, "contexts", chosen)
    cluster = found.get("cluster")
    if not cluster:
        return f"context {chosen} names no cluster"
    if not _named(content, "clusters", cluster).get("server"):
        return f"context {chosen} names cluster {cluster}, of which there is no server"
    return None


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none (it has no contexts)"
