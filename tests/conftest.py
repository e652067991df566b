"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# No deadline: how long an example takes depends on what else the machine does, not on the code.
settings.register_profile("kvserving", deadline=None, print_blob=True)
settings.load_profile("kvserving")
