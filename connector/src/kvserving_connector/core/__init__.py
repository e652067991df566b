"""Pure parts of the connector: no vLLM, no torch, no files, no clock."""
