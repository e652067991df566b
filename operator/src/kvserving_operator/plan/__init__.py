"""The plan: from one object to everything that should exist for it. Pure and deterministic.

``planning.plan`` uses no client, clock, environment or randomness: the same object gives the
same bytes in the cluster, on the local site and in ``kvserving render``. The package itself
imports nothing, so that who needs one label does not pay for every builder.
"""
