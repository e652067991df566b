"""The executor: runs a plan as processes on one Linux machine.

``supervisor.Supervisor`` owns every process of one service. The other modules have one
concern each and know nothing of it: pod templates to processes (``container``,
``volumes``, ``pods``), one process (``process``), one pod (``podrunner``), probes,
discovery, addresses, GPUs, what must hold before a start (``preflight``), and state on
disk (``state``). Nothing here needs root.
"""
