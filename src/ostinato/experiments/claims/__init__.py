"""Claims of papers: what is expected, running it, and comparing what was found with its band."""
