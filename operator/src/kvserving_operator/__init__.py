"""KVServing: a Kubernetes operator for prefill/decode-disaggregated LLM serving with vLLM."""

__version__ = "0.1.0"
