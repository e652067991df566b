"""A cluster as a person reaches it: by kubeconfig, or by the pod's service account."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from ..api.v1alpha1 import KIND
from ..control.config import Config
from ..control.credentials import SERVICE_ACCOUNT, NoCredentials, access, client
from ..control.failures import ApiFailure, describe
from ..control.kube import Kube
from ..control.workqueue import TokenBucket
from ..local.errors import EnvironmentFault

DEFAULT_KUBECONFIG = Path("~/.kube/config")


class NoCluster(EnvironmentFault):
    """Nothing on this machine names a cluster."""


@dataclass(frozen=True)
class Connection:
    """Requests to one cluster. ``namespace`` is the one asked for, else that of the context, else ``default``."""

    kube: Kube
    namespace: str
    server: str
    settings: Any
    tls: Any

    def pod_url(self, namespace: str, pod: str, port: int) -> str:
        """Address under which the apiserver passes requests on to a pod."""
        return f"{self.server}{pod_path(namespace, pod, port)}"

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A session that speaks to the apiserver with these credentials, for what is behind its proxy."""
        token = await self.settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        connector = aiohttp.TCPConnector(ssl=self.tls)
        headers = {"Authorization": token} if token else {}
        proxy = self.settings.proxy or None
        async with aiohttp.ClientSession(connector=connector, headers=headers, proxy=proxy) as session:
            yield session


def pod_path(namespace: str, pod: str, port: int) -> str:
    """Path of a pod behind the apiserver's proxy."""
    return f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy"


def kubeconfig_of(option: str | None) -> str | None:
    """The kubeconfig to use: the option, ``$KUBECONFIG``, ``~/.kube/config``; ``None`` inside a pod.

    Raises ``EnvironmentFault`` where there is none.
    """
    chosen = option or os.environ.get("KUBECONFIG") or None
    if chosen is not None:
        files = [Path(part).expanduser() for part in chosen.split(os.pathsep) if part]
        if not any(file.is_file() or file.is_fifo() for file in files):
            source = "--kubeconfig" if option else "KUBECONFIG"
            raise EnvironmentFault(f"{source}: {chosen} is no file: name a kubeconfig")
        return chosen
    if (default := DEFAULT_KUBECONFIG.expanduser()).is_file():
        return str(default)
    if SERVICE_ACCOUNT.is_dir():
        return None
    raise NoCluster(
        f"there is no cluster to ask: neither --kubeconfig nor KUBECONFIG is set, and {DEFAULT_KUBECONFIG} does not "
        "exist. Name a kubeconfig"
    )


@asynccontextmanager
async def connect(
    kubeconfig: str | None, context: str | None, namespace: str | None, timeout: float = 15, *, writing: bool = False
) -> AsyncIterator[Connection]:
    """Connect to the cluster that ``kubeconfig`` (as ``kubeconfig_of`` found it) and ``context`` name.

    ``timeout`` bounds each request, in seconds. Nothing can be written unless ``writing``. Raises ``EnvironmentFault``
    where the credentials cannot be read.
    """
    config = Config(kubeconfig=Path(kubeconfig) if kubeconfig is not None else None, request_timeout=timeout)
    try:
        reached = await access(config, context=context)
        api = client(reached.settings)
    except NoCredentials as error:
        raise EnvironmentFault(str(error)) from error
    transport: Any = api
    kube = Kube(
        api,
        limit=TokenBucket(asyncio.get_running_loop(), config.write_rate, config.write_burst),
        timeout=timeout,
        may_write=lambda: writing,
        observe=lambda _: None,
        now=time.monotonic,
    )
    own: Any = reached.settings
    chosen = namespace or reached.namespace or "default"
    try:
        yield Connection(kube, chosen, str(own.host).rstrip("/"), own, transport.rest_client.ssl_context)
    finally:
        await transport.close()


def refused(server: str, failure: ApiFailure) -> EnvironmentFault:
    """What to say when the apiserver gives no answer, or not the one that was asked for."""
    if failure.status == 0:
        return EnvironmentFault(f"{server} does not answer: {failure.reason}. Check --context and the network")
    if failure.status == 401:
        return EnvironmentFault(f"{server} does not accept the credentials: log in again, or name another --context")
    if failure.status == 403:
        return EnvironmentFault(f"you may not {failure.what}: ask for the right to")
    if failure.kind_missing:
        return EnvironmentFault(f"the cluster has no {KIND}: install the CRD (`kubectl apply --server-side -f crds/`)")
    return EnvironmentFault(describe(failure))
