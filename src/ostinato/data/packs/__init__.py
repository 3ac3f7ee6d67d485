"""Texts that are tokenised once, into files that are mapped into memory: from the user's files to rows for training."""
