"""Credentials that a kubeconfig only shows the way to: programs that print them, and a login service.

The client's loader waits for a program as long as it takes, as client-go does, writes to the log what one that fails
has printed, and goes on without credentials. Here one that fails, or gives no answer in time, is a failure, and nothing
that it printed is shown.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.exec_provider import ExecProvider
from kubernetes.aio.config.kube_config import FileOrData, KubeConfigLoader

from ..api.faults import printable
from . import programs

_UNLIKE = (ConfigException, ValueError, TypeError, KeyError, AttributeError)
_CERTIFICATE, _KEY = "clientCertificateData", "clientKeyData"


class PluginFailed(Exception):
    """There are no credentials where the kubeconfig points to; the message names the command and the way out."""


async def ask(section: Any, kubeconfig: object) -> Mapping[str, Any]:
    """What the plugin of ``section``, the ``exec`` of a user of ``kubeconfig``, answers: a token, or a certificate.

    Raises ``PluginFailed``.
    """
    provide: Any = ExecProvider
    told = "is not as it should be: it takes apiVersion, command, args and env"
    unlike = PluginFailed(f"kubeconfig {kubeconfig}: the exec section of its user {told}")
    try:
        provider = provide(section)
        command, version = list(provider.args), provider.api_version
        # Nobody would see its questions.
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = {**provider.env, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    except _UNLIKE:
        raise unlike from None
    who = f"credential plugin {printable(str(command[0]))} of kubeconfig {kubeconfig}"
    try:
        answer = await _answer(command, environment, who, "exec.command")
    except (TypeError, ValueError):
        raise unlike from None
    if not isinstance(answer, Mapping) or answer.get("apiVersion") != version or not {"kind", "status"} <= set(answer):
        raise PluginFailed(f"{who} answers with no ExecCredential of its apiVersion: upgrade it")
    status = answer["status"]
    if not isinstance(status, Mapping) or not (status.get("token") or (status.get(_CERTIFICATE) and status.get(_KEY))):
        raise PluginFailed(f"{who} answers with neither a token nor a certificate and its key: log in again")
    return status


class Loader(KubeConfigLoader):
    """The client's loader; no credentials raise ``PluginFailed``, whose message calls the file ``kubeconfig``."""

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

    async def load_gcp_token(self) -> Any:
        """Take the token of the section, where it lasts, else what its command prints."""
        self._get_google_credentials = self._google
        take: Any = super().load_gcp_token
        return await take()

    async def _google(self) -> SimpleNamespace:
        user: Any = self._user
        config = user["auth-provider"]["config"]
        command = [config["cmd-path"], *shlex.split(config["cmd-args"])]
        who = f"credential program {printable(str(command[0]))} of kubeconfig {self.kubeconfig}"
        answer: Any = await _answer(command, None, who, "auth-provider.config.cmd-path")
        try:
            found = answer["credential"]
            return SimpleNamespace(token=found["access_token"], expiry=found["token_expiry"])
        except (TypeError, LookupError):
            raise PluginFailed(f"{who} answers with no credential: log in again") from None

    async def _refresh_oidc(self, provider: Any) -> None:
        refresh: Any = super()._refresh_oidc
        try:
            async with asyncio.timeout(programs.SECONDS):
                await refresh(provider)
        except TimeoutError:
            late = f"the login service of kubeconfig {self.kubeconfig} gave no answer within {programs.SECONDS:g} s"
            raise PluginFailed(f"{late}: log in again, or name another --context") from None


async def _answer(command: Sequence[str], environment: Mapping[str, str] | None, who: str, field: str) -> object:
    """The JSON that a program prints; ``None`` for anything else. ``field`` of the user names the program.

    Raises ``PluginFailed``; ``TypeError`` or ``ValueError`` for a command that is none.
    """
    try:
        status, text = await programs.printed(command, environment)
    except TimeoutError:
        late = f"gave no answer within {programs.SECONDS:g} s and was ended"
        way = "it may wait for somebody to log in: do so first, with a kubectl command that uses this kubeconfig"
        raise PluginFailed(f"{who} {late}; {way}, or correct {field} of the user") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise PluginFailed(f"{who} cannot be run ({reason}): install it, or correct {field} of the user") from None
    except programs.TooLong:
        return None
    if status != 0:
        raise PluginFailed(f"{who} failed (exit status {status}): log in again")
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


def _file(status: Mapping[str, Any], key: str) -> Any:
    """A private file of what is below ``key``, which is removed when this process ends."""
    hold: Any = FileOrData
    return hold(status, None, data_key_name=key, base64_file_content=False).as_file()
