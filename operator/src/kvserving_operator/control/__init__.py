"""The operator process: watch, queue, observe, plan, apply, report.

``main.run`` is the whole process. What decides is pure (``drift``, ``conditions``, ``status``,
``failures``, ``workqueue``); what touches the cluster is thin (``kube``, ``apply``, ``app``).
"""
