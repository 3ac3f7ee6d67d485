"""From files to batches: examples, their sources, downloads, tokenizers, and token ids side by side."""
