"""The operator with a stand-in for the probes, for tests whose pods are no engines.

A process that is forked after this module's imports is ``kvserving operator run`` by ``serve``: a test that starts an
operator does not wait for imports. Of the product, these are replaced:

| Variable | What it sets |
|---|---|
| ``KVSERVING_TEST_PROBE`` | a file with what probes say: ``ok``, or a cause of ``verify.proof.Cause`` |
| ``KVSERVING_TEST_INACTIVITY`` | seconds after which a silent watch is opened anew, if given |
| ``KVSERVING_TEST_HUNG`` | seconds until an engine whose requests all wait is hung, and a replacement over, if given |
| ``KVSERVING_TEST_RETRIES`` | how often the event source tries a request again, each time soon, if given |
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvserving_operator.cli import operator as command
from kvserving_operator.control import app, main, parts
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


def serve(arguments: Sequence[str], env: Mapping[str, str], log: str) -> None:
    """Be the operator with these arguments and further environment variables, and append what it says to ``log``."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.environ.update(env)
    app.settings = functools.partial(settings, app.settings)
    if "KVSERVING_TEST_HUNG" in os.environ:
        seconds = float(os.environ["KVSERVING_TEST_HUNG"])
        limits, rate = Limits(queued=seconds), Rate(least=seconds)
        assert vars(parts)["Restarts"] is Restarts
        vars(parts)["Restarts"] = functools.partial(Restarts, limits=limits, rate=rate)
    main.run = functools.partial(main.run, probe=probe)
    command.run.main(arguments)
