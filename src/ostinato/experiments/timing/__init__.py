"""Measured speed: models on random weights and the same work, timed in the same rounds."""
