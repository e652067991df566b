"""Classes that vLLM loads by module path."""
