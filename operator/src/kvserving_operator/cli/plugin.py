"""``kubectl kvserving``: the commands that need a cluster or a file, as a plugin of kubectl.

kubectl finds the program ``kubectl-kvserving`` in PATH. ``rollout``, ``validate``, ``render``, ``doctor`` and
``version`` are those of ``kvserving``; ``status`` and ``verify`` there are about services of one machine, and here
about objects.
"""

from __future__ import annotations

import click

from . import SUMMARIES, Commands, show_version

PROGRAM = "kubectl kvserving"

_COMMANDS = {
    "status": "Show objects, their conditions and pods.",
    "verify": "Prove now that KV moves from prefill to decode.",
    **{name: SUMMARIES[name] for name in ("rollout", "doctor", "validate", "render", "version")},
}
_SELECTED = "-l kvserving.dev/name=NAME,kvserving.dev/role=decode"
_MAKE = "`kubectl apply -f FILE` makes an object, `kvserving up FILE` runs it on this machine"
_DELETE = "`kubectl delete kvs NAME` removes an object and what was made for it"
_ELSEWHERE = {
    **dict.fromkeys(("up", "apply", "create", "deploy", "start", "run"), _MAKE),
    **dict.fromkeys(("down", "stop", "delete", "rm", "remove"), _DELETE),
    **dict.fromkeys(("ps", "list", "ls", "get", "describe"), "`kubectl kvserving status` shows objects and their pods"),
    "logs": f"`kubectl logs {_SELECTED} --prefix --tail=50` shows those of a role's pods",
    "plan": "`kvserving plan` sizes a service",
    "cache": "the dashboards (docs/dashboards.md) show what the tiers hold; `kvserving cache` is for this machine",
    "operator": "`kvserving operator run` is what the operator's pod runs",
}
_EPILOG = """\b
Exit status:
  0    yes: valid, verified, rolled out, no error found
  1    the answer is no
  2    wrong usage
  3    the cluster cannot be reached, or a right is missing; the message says which
  130  interrupted
"""


@click.command(
    cls=Commands,
    helps=_COMMANDS,
    elsewhere=_ELSEWHERE,
    modules={"status": "plugin_status", "verify": "plugin_verify"},
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Print the version."
)
def plugin(debug: bool) -> None:
    """Look at KVServing objects in a cluster and at files before they are applied, and take a rollout back."""
