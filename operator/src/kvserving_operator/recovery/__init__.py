"""Which engine is to be started anew, and when: judgements without clock, client or process.

``hung`` finds engines that stand still, ``pairs`` those that cannot transfer, ``policy`` says which one may be
restarted now.
"""
