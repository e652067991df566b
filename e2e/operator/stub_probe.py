"""The operator with a stand-in for the probes, for tests whose pods are no engines.

As a program it imports everything, waits for one line of JSON (``arguments``, ``env``, ``log``), and is then
``kvserving operator run`` with those arguments: a test that starts an operator does not wait for imports. An end of
its input instead of a line ends it. Of the product, these are replaced:

| Variable | What it sets |
|---|---|
| ``KVSERVING_TEST_PROBE`` | a file with what probes say: ``ok``, or a cause of ``verify.proof.Cause`` |
| ``KVSERVING_TEST_INACTIVITY`` | seconds after which a silent watch is opened anew, if given |
| ``KVSERVING_TEST_HUNG`` | seconds until an engine whose requests all wait is hung, and a replacement over, if given |
| ``KVSERVING_TEST_RETRIES`` | how often the event source tries a request again, each time soon, if given |
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kvserving_operator.cli import operator as command
from kvserving_operator.control import app, main
from kvserving_operator.control.restarts import Restarts
from kvserving_operator.recovery.hung import Limits
from kvserving_operator.recovery.policy import Rate
from kvserving_operator.verify.proof import Cause, Verdict
from kvserving_operator.verify.run import PairResult, Verification


async def probe(engines: Any, *, revision: str, keys: tuple[bytes, ...], **_: Any) -> Verification:
    """Say what the file says."""
    assert keys
    word = Path(os.environ["KVSERVING_TEST_PROBE"]).read_text().strip()
    verdict = Verdict("as the test wants it", None if word == "ok" else Cause(word))
    prefill = next(engine.pod for engine in engines if engine.role == "prefill")
    decode = next(engine.pod for engine in engines if engine.role == "decode")
    return Verification(revision, time.time(), (PairResult(prefill, decode, verdict),))


def settings(original: Any, resources: Any) -> Any:
    """Return the product's settings of the event source with what the environment says."""
    made = original(resources)
    if "KVSERVING_TEST_INACTIVITY" in os.environ:
        made.watching.inactivity_timeout = float(os.environ["KVSERVING_TEST_INACTIVITY"])
    if "KVSERVING_TEST_RETRIES" in os.environ:
        made.networking.error_backoffs = [0.1] * int(os.environ["KVSERVING_TEST_RETRIES"])
    return made


def serve() -> None:
    """Wait for the order and carry it out."""
    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.environ.update(order["env"])
    app.settings = functools.partial(settings, app.settings)
    if "KVSERVING_TEST_HUNG" in os.environ:
        seconds = float(os.environ["KVSERVING_TEST_HUNG"])
        limits, rate = Limits(queued=seconds), Rate(least=seconds)
        vars(main)["Restarts"] = functools.partial(Restarts, limits=limits, rate=rate)
    main.run = functools.partial(main.run, probe=probe)
    command.run.main(order["arguments"])


if __name__ == "__main__":
    serve()
