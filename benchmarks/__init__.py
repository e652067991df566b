"""Benchmarks: each compares with a yardstick in the same run, and writes its table to ``results/``."""
