"""Credential plugins of a kubeconfig: programs that print the credentials of a user.

The client's loader writes to the log what a plugin that fails has printed, and goes on without credentials. Here such a
plugin is a failure, and nothing that it printed is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.exec_provider import ExecProvider
from kubernetes.aio.config.kube_config import FileOrData, KubeConfigLoader

from ..api.faults import printable

_ENDED = re.compile(r"exec: process returned (-?[0-9]+)")
_UNLIKE = (ConfigException, ValueError, TypeError, KeyError, AttributeError)
_CERTIFICATE, _KEY = "clientCertificateData", "clientKeyData"


class PluginFailed(Exception):
    """There are no credentials of a plugin; the message names its command and the way out."""


async def ask(section: Any, kubeconfig: object) -> Mapping[str, Any]:
    """What the plugin of ``section``, the ``exec`` of a user of ``kubeconfig``, answers: a token, or a certificate.

    Raises ``PluginFailed``.
    """
    provide: Any = ExecProvider
    try:
        provider = provide(section)
        command = printable(str(provider.args[0]))
    except _UNLIKE:
        told = "is not as it should be: it takes apiVersion, command, args and env"
        raise PluginFailed(f"kubeconfig {kubeconfig}: the exec section of its user {told}") from None
    who = f"credential plugin {command} of kubeconfig {kubeconfig}"
    try:
        status = await provider.run()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise PluginFailed(f"{who} cannot be run ({reason}): install it, or correct exec.command of the user") from None
    except _UNLIKE as error:
        if ended := _ENDED.match(str(error)):
            raise PluginFailed(f"{who} failed (exit status {ended[1]}): log in again") from None
        raise PluginFailed(f"{who} answers with no ExecCredential of its apiVersion: upgrade it") from None
    if not isinstance(status, Mapping) or not (status.get("token") or (status.get(_CERTIFICATE) and status.get(_KEY))):
        raise PluginFailed(f"{who} answers with neither a token nor a certificate and its key: log in again")
    return status


class Loader(KubeConfigLoader):
    """The client's loader; a plugin that fails raises ``PluginFailed``. ``kubeconfig`` is what messages call it."""

    kubeconfig: object = ""

    async def load_from_exec_plugin(self) -> bool:
        """Take what the plugin of the user answers."""
        user: Any = self._user
        status = await ask(user["exec"], self.kubeconfig)
        if status.get("token"):
            self.token = f"Bearer {status['token']}"
        if status.get(_CERTIFICATE) and status.get(_KEY):
            self.cert_file, self.key_file = _file(status, _CERTIFICATE), _file(status, _KEY)
        return True


def _file(status: Mapping[str, Any], key: str) -> Any:
    """A private file of what is below ``key``, which is removed when this process ends."""
    hold: Any = FileOrData
    return hold(status, None, data_key_name=key, base64_file_content=False).as_file()
