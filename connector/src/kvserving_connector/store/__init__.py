"""The shared store of the L2 tier: clients, framing, namespaces and transfers. Imports neither vllm nor torch."""
