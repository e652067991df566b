"""The operator with a stand-in for the probes, for tests whose pods are no engines.

``KVSERVING_TEST_PROBE`` is a file with what the stand-in says: ``ok``, or a cause of ``verify.proof.Cause``.
Everything else is the product's; command line as of ``kvserving operator run``.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

from kvserving_operator.cli import operator as command
from kvserving_operator.control import main
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


if __name__ == "__main__":
    main.run = functools.partial(main.run, probe=probe)
    command.run.main()
