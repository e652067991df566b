"""``kvserving operator run``: the Kubernetes operator process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .bounded import Count, Number, Time

_EPILOG = """\b
Exit status:
  0  stopped by a signal
  1  a watch or another part failed for good; the log says which
  2  wrong usage
  3  permissions are missing; the log names each verb
  4  the Lease was lost: another operator may write
  5  the cluster cannot be reached, or the CRD is not installed
"""


@click.group("operator", help="The Kubernetes operator.")
def command() -> None:
    """Group of the operator's commands."""


@command.command(epilog=_EPILOG, context_settings={"show_default": True, "auto_envvar_prefix": "KVSERVING_OPERATOR"})
@click.option(
    "--namespace",
    "namespaces",
    envvar="KVSERVING_OPERATOR_NAMESPACE",
    multiple=True,
    metavar="NAME",
    help="Serve this namespace only; repeatable. [all]",
)
@click.option(
    "--own-namespace", envvar=["KVSERVING_OPERATOR_OWN_NAMESPACE", "POD_NAMESPACE"], default="kvserving-system",
    help="The operator's namespace: its Lease is there, and engines accept probes from it.",
)  # fmt: skip
@click.option(
    "--kubeconfig", envvar=["KVSERVING_OPERATOR_KUBECONFIG", "KUBECONFIG"],
    type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Credentials. [the pod's service account]",
)  # fmt: skip
@click.option("--workers", type=Count(1, 64), default=16, help="Objects reconciled at once.")
@click.option("--resync", type=Time(0.1), default="10m", help="Time between full comparisons with the cluster.")
@click.option("--counters", type=Time(0.5), default="15s", help="Time between looks at the engines' counters.")
@click.option("--write-rate", type=Number(1), default=300, help="Writes per second.")
@click.option("--write-burst", type=Count(1), default=600, help="Writes at once.")
@click.option("--request-timeout", type=Time(1), default="30s", help="Time for one request to the apiserver.")
@click.option("--listen", default="0.0.0.0:8080", help="Address of /metrics, /healthz and /readyz.")
@click.option("--elect/--no-elect", default=True, help="Hold a Lease while writing; needed with several replicas.")
@click.option(
    "--identity",
    envvar=["KVSERVING_OPERATOR_IDENTITY", "POD_NAME"],
    help="Name of this process in the Lease. [host name and random digits]",
)
@click.option("--lease-name", default="kvserving-operator", help="Name of the Lease.")
@click.option("--lease-duration", type=Time(3, whole=True), default="15s", help="Time until another takes over.")
@click.option(
    "--renew-deadline",
    type=Time(2, whole=True),
    default="10s",
    help="Time without renewal after which the holder ends.",
)
@click.option("--retry-period", type=Time(1, whole=True), default="2s", help="Time between attempts.")
@click.option("--connector-image", help="Image that holds the connector. [the release's]")
@click.option("--monitoring-namespace", default="monitoring", help="Namespace that may scrape the pods.")
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json", help="Form of log lines.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="Least level logged."
)
def run(**options: Any) -> None:
    """Watch KVServing objects and keep the cluster as they ask.

    Every option can be set by KVSERVING_OPERATOR_<OPTION>; several namespaces are separated by spaces.
    """
    from ..control.config import Config, Election, own_identity
    from ..control.main import run as run_operator
    from ..plan.types import CONNECTOR_IMAGE

    host, colon, port = options["listen"].rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise click.BadParameter(f"{options['listen']!r} is not HOST:PORT", param_hint="--listen")
    try:
        config = Config(
            namespaces=tuple(dict.fromkeys(options["namespaces"])),
            namespace=options["own_namespace"],
            kubeconfig=options["kubeconfig"],
            identity=options["identity"] or own_identity(),
            workers=options["workers"],
            resync_seconds=options["resync"],
            counters_seconds=options["counters"],
            write_rate=options["write_rate"],
            write_burst=options["write_burst"],
            request_timeout=options["request_timeout"],
            listen_host=host.strip("[]") or "0.0.0.0",  # noqa: S104 - the kubelet comes from outside the pod
            listen_port=int(port),
            election=Election(
                enabled=options["elect"],
                name=options["lease_name"],
                duration=options["lease_duration"],
                renew_deadline=options["renew_deadline"],
                retry_period=options["retry_period"],
            ),
            connector_image=options["connector_image"] or CONNECTOR_IMAGE,
            monitoring_namespace=options["monitoring_namespace"],
            log_format=options["log_format"],
            log_level=options["log_level"],
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    sys.exit(run_operator(config))
