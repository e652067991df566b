"""What KVServing runs inside vLLM: request guard, NIXL connector with signed parameters and receipts."""

__version__ = "0.1.0"
