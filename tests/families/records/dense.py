from __future__ import annotations

from family import Family

from ostinato.interop.names.decoders import jetmoe, llama

FAMILIES = [
    Family("jetmoe", "dense/jetmoe-toy", jetmoe),
    Family("llama-gqa-llama3", "dense/llama-toy", llama),
    Family("mixtral", "dense/mixtral-toy", llama),
    Family("qwen3", "dense/qwen3-toy", llama),
]
