"""Stands for ray, which vLLM's test_nixl_connector.py imports for one test, and other files by importing that one."""
