"""Benchmarks of speed and memory, compared with similar tools: `scripts/bench`, or `python -m bench`."""
