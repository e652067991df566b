"""Settings of the property tests, and what processes that tests start import."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

# No deadline: how long an example takes depends on what else the machine does, not on the code.
settings.register_profile("kvserving", deadline=None, print_blob=True)
settings.load_profile("kvserving")

# What pytest puts on its own path reaches no process that a test starts: in an environment of another checkout that
# one would import the other's connector, and pass or fail for it.
_SOURCES = [str(Path(__file__).parents[1] / part / "src") for part in ("operator", "connector")]
os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *_SOURCES])
