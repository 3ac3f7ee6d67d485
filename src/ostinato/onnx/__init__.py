"""Runs as graphs of other runtimes: torch.export, and ONNX, which needs the extra `onnx`."""
