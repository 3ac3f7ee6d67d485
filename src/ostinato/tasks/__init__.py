"""Benchmarks, one file each: protocol, settings and splits; found through `ostinato.tasks.registry`."""
