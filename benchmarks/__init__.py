"""Benchmarks: ratios measured side by side in one run, the minimum of several."""
