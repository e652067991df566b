"""What an object, a cluster or a machine gets wrong, and why each injected setting is there.

``facts`` is what was looked at, ``checks`` are pure functions from facts to findings, ``explain`` names the reason of
each setting that the plan injects. ``gather_*`` are the only modules that ask a cluster or the system; they keep
names and numbers, never the values of Secrets.
"""
