"""``python -m kvserving_connector.store usage|purge --url URL``: what a store holds, as JSON.

Credentials come from the environment, as for engines: ``--help`` names the variables. Exit status 1 and a line on
standard error when the store does not serve.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time

from kvserving_connector.store.address import CA, CA_FILE, PASSWORD, PASSWORD_FILE, USERNAME, Credentials
from kvserving_connector.store.client import StoreFault
from kvserving_connector.store.inventory import holdings, purge
from kvserving_connector.store.open import KINDS, examples, open_store

_ENVIRONMENT = f"""\
environment, read as engines read it:
  {USERNAME}       the user, where the store has users
  {PASSWORD_FILE}  file with the password, read again for every connection
  {PASSWORD}       the password itself, where no file is named
  {CA_FILE}        file in PEM: the authority of a server with TLS, in place of the system's
  {CA}             the same as text
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m kvserving_connector.store",
        description="What a store holds, as JSON (usage), or remove a namespace of it (purge).",
        epilog=_ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["usage", "purge"])
    parser.add_argument(
        "--url", action="append", required=True, help=f"address of the store: {examples()}; repeat it for shards"
    )
    bounded = ", ".join(f"{scheme}://" for kind in KINDS if kind.bounded for scheme in kind.schemes)
    parser.add_argument(
        "--max-bytes", type=int, help=f"bound of a store that has none by itself ({bounded}); others leave it aside"
    )
    parser.add_argument("--namespace", help="the namespace to remove (purge)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for all of it")
    options = parser.parse_args(arguments)
    if options.command == "purge" and not options.namespace:
        parser.error("purge needs --namespace")
    deadline = time.monotonic() + options.timeout
    try:
        store = open_store(options.url, options.max_bytes, Credentials.from_environment())
        try:
            if options.command == "purge":
                answer = dataclasses.asdict(purge(store, options.namespace, deadline))
            else:
                found = holdings(store, deadline)
                answer = {"namespaces": [dataclasses.asdict(holding) for holding in found]}
                answer |= dataclasses.asdict(store.usage(deadline))
        finally:
            store.close()
    except (StoreFault, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
