"""How a cluster is reached: by a kubeconfig's context, or by the service account of the pod that this runs in.

The client's loader names in its errors what it was reading, at times with all that stands there: no text of its errors
about a file's content is shown, and what is wrong with it is looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config
from kubernetes.aio.config.kube_config import KubeConfigMerger
from yaml import YAMLError

from ..plan import addresses
from .config import Config
from .exec_plugin import Loader, PluginFailed

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_AGAIN = "log in again, or name another --context"
_NO_FILE = re.compile("File does not exists?: (.*)")
_UNLIKE = (ConfigException, YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


class NoCredentials(Exception):
    """The connection to a cluster cannot be set up from what was named; the message says why and the way out."""


@dataclass(frozen=True)
class Access:
    """How a cluster is reached; ``namespace`` is that of the context or of the pod, ``None`` where it names none."""

    settings: Configuration
    namespace: str | None


async def access(config: Config, *, context: str | None = None) -> Access:
    """Return how to reach the cluster of ``config.kubeconfig``, else of the pod's service account.

    ``context`` is that of the kubeconfig to use, without it the current one. Each file is read once, so that it may be
    a pipe. Raises ``NoCredentials`` when neither can be read; its message quotes nothing of the file but names.
    """
    # The class hands out copies of one default; this process has no other user of it.
    settings: Any = Configuration()
    if config.kubeconfig is None:
        in_cluster: Any = load_incluster_config
        try:
            in_cluster(client_configuration=settings)
            file = SERVICE_ACCOUNT / "namespace"
            namespace = file.read_text().strip() if file.is_file() else None
        except (ConfigException, OSError) as error:
            raise NoCredentials(f"the pod's service account: {error}; name a file with --kubeconfig") from None
    else:
        namespace = await _load(config.kubeconfig, context, settings)
    settings.connection_pool_maxsize = max(16, config.workers * 4)
    # kopf's connection does the same. Proxies come from the kubeconfig; with the environment's, every request would
    # read ~/.netrc as well, and could send a password from there.
    settings.client_session_kwargs = {"trust_env": False}
    return Access(settings, namespace or None)


def client(settings: Configuration) -> ApiClient:
    """Return a client for ``settings``. Raises ``NoCredentials`` when its certificates cannot be read."""
    build: Any = ApiClient
    try:
        return build(configuration=settings)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise NoCredentials(f"certificates for {settings.host} cannot be read: {error}") from None


async def _load(kubeconfig: Path, context: str | None, settings: Any) -> str | None:
    """Let the client's loader fill ``settings``, once the file's references lead somewhere; the context's namespace."""
    where, what = f"kubeconfig {kubeconfig}", "it is no kubeconfig"
    try:
        content = _content(kubeconfig)
        # The loader takes a context whose cluster has no server for one on this machine.
        if (fault := _fault(content.value, context)) is not None:
            raise NoCredentials(f"{where}: {fault}")
        what = "the credentials of its user are not as they should be"
        build: Any = Loader
        loader = build(content, active_context=context, config_base_path=None)
        loader.kubeconfig = kubeconfig
        await loader.load_and_set(settings)
        # That of a file ends with its line.
        if token := settings.api_key.get("BearerToken", "").strip():
            settings.api_key["BearerToken"] = token
        if not token.isprintable():
            raise ValueError("a token of several lines")
        namespace = _named(content.value, "contexts", context or content.value["current-context"]).get("namespace")
        return str(namespace) if namespace else None
    except PluginFailed as failed:
        raise NoCredentials(str(failed)) from None
    except aiohttp.ClientError as error:
        raise NoCredentials(f"{where}: its login service does not answer ({type(error).__name__}): {_AGAIN}") from None
    except OSError as error:
        raise NoCredentials(f"{where}: {error}; name a file with --kubeconfig") from None
    except _UNLIKE as error:
        # Both take a file of another shape apart without looking.
        gone = _NO_FILE.fullmatch(str(error))
        told = f"{gone[1]} does not exist" if gone else type(error).__name__
        raise NoCredentials(f"{where} cannot be read ({told}): {what}") from None


def _content(kubeconfig: Path) -> Any:
    """All files of ``kubeconfig``, merged as the client merges them: its node, which knows where each part stood."""
    merge: Any = KubeConfigMerger
    content = merge(str(kubeconfig)).config
    if not isinstance(content.value, Mapping):
        raise TypeError("no mapping")
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
    if not known:
        return "it has no contexts: name a file with --kubeconfig that has"
    if not chosen:
        return f"no context is its current one: name one of {_list(known)} with --context"
    if chosen not in known:
        whose = "there is no context" if context else "its current context is missing:"
        return f"{whose} {chosen}: name one of {_list(known)} with --context"
    found = _named(content, "contexts", chosen)
    cluster, user = found.get("cluster"), found.get("user")
    if not cluster:
        return f"context {chosen} names no cluster"
    described = _named(content, "clusters", cluster)
    server, proxy = described.get("server"), described.get("proxy-url")
    if not server:
        return f"context {chosen} names cluster {cluster}, of which there is no server"
    if (wrong := _server_fault(server)) is not None:
        return f"context {chosen} names cluster {cluster}, whose server {wrong}"
    if proxy and (wrong := _address_fault(proxy)) is not None:
        return f"context {chosen} names cluster {cluster}, whose proxy-url {wrong}"
    if user and all(entry.value["name"] != user or entry.value.get("user") is None for entry in content["users"]):
        return f"context {chosen} names user {user}, of which there are no credentials: {_AGAIN}"
    if not user and server.startswith("https"):
        return f"context {chosen} names no user: {_AGAIN}"
    return None


def _server_fault(server: object) -> str | None:
    """Why ``server`` is no address of an apiserver."""
    if isinstance(server, str) and "@" in server:
        return f"{addresses.shown(server)} holds credentials: leave them out, and give its user username and password"
    if isinstance(server, str) and ("?" in server or "#" in server):
        return f"{addresses.shown(server)} holds more than scheme, host, port and path"
    return _address_fault(server)


def _address_fault(text: object) -> str | None:
    """Why ``text`` is no address to ask. What of it may be a password is not shown."""
    if not isinstance(text, str):
        return "is no text: write it as https://host:port"
    shown, address = addresses.shown(text), addresses.parse(text)
    if address.problem:
        return f"{shown} {address.problem}"
    if address.scheme not in ("http", "https"):
        return f"{shown} has no http:// or https://"
    try:
        address.host.encode("idna")
    except UnicodeError:
        return f"{shown} has a host name with a part that is empty, or longer than 63 letters"
    return None


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
