"""``python -m kvserving_connector.store usage|purge --url URL``: what a store holds, as JSON.

Credentials come from the environment, as for engines (``KVSERVING_STORE_*``). Exit status 1 and a line on standard
error when the store does not serve.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time

from kvserving_connector.store.address import Credentials
from kvserving_connector.store.client import StoreFault
from kvserving_connector.store.inventory import holdings, purge
from kvserving_connector.store.open import open_store


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_connector.store", description="What a store holds.")
    parser.add_argument("command", choices=["usage", "purge"])
    parser.add_argument("--url", action="append", required=True, help="address of the store; repeat it for shards")
    parser.add_argument("--max-bytes", type=int, help="bound of a directory")
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
