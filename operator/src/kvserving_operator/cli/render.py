"""``kvserving render``: the objects of a file, for the cluster or for this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..plan.types import GeneratedSecret


@click.command("render")
@click.argument("file", metavar="FILE")
@click.option("--site", type=click.Choice(["cluster", "local"]), default="cluster", help="Where it is to run.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Form of the objects.")
def command(file: str, site: str, output: str) -> int:
    """Print the Kubernetes objects of FILE (- is standard input), as the operator applies them.

    Nothing else goes to standard output; notices go to standard error.
    """
    from ..local import model_config
    from ..plan.planning import plan
    from ..plan.types import Observed, Site
    from . import files

    serving, of_file = files.read_with_notices(file)
    local = site == "local"
    facts = model_config.facts(serving.spec.model) if local else None
    planned = plan(serving, site=Site("local" if local else "cluster"), observed=Observed(facts=facts))
    for notice in (*of_file, *planned.notices):
        click.echo(f"notice: {notice}", err=True)
    for secret in planned.generated_secrets:
        click.echo(f"notice: {_unprinted(secret, planned.namespace, local)}", err=True)
    objects: list[Any] = [json.loads(json.dumps(manifest)) for manifest in planned.objects]
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        click.echo(_yaml(objects), nl=False)
    return 0


def _unprinted(secret: GeneratedSecret, namespace: str, local: bool) -> str:
    what = f"Secret {secret.name} ({', '.join(secret.keys)}) is not printed: it holds random values, and"
    if local:
        return f"{what} `kvserving up` creates it"
    keys = " ".join(f"--from-literal={key}=$(openssl rand -hex {size})" for key, size in secret.keys.items())
    command = f"kubectl create secret generic {secret.name} -n {namespace} {keys}"
    return f"{what} the operator creates it. Without the operator create it yourself: {command}"


def _yaml(objects: list[Any]) -> str:
    import yaml

    from ..plain_yaml import Dumper

    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True, width=10_000)
