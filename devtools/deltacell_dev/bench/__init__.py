"""Benchmarks for developers, run by `deltacell bench` where this package is installed."""
