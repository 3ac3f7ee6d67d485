"""Layers: tensors in, tensors out; one file per idea. They know no configuration."""
