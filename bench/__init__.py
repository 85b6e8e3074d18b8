"""Benchmarks: each file with a `measure` function is a comparison with a named peer, run on the same machine."""
