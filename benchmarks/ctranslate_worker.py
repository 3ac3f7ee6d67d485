"""CTranslate2 in a process of its own: its threads bring their own OpenMP, beside which torch's slow down.

Reads JSON lines: first the settings {model, threads, length, sources: {phase: rows of tokens}, beams: {phase: beam}},
then phases; answers each with the best output of every source, as ids.
"""

from __future__ import annotations

import json
import sys

import ctranslate2


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    translator = ctranslate2.Translator(
        settings["model"], device="cpu", compute_type="float32", intra_threads=settings["threads"]
    )
    length = settings["length"]
    print(json.dumps(ctranslate2.__version__), flush=True)
    for line in sys.stdin:
        phase = json.loads(line)
        results = translator.translate_batch(
            settings["sources"][phase],
            beam_size=settings["beams"][phase],
            min_decoding_length=length,
            max_decoding_length=length,
            length_penalty=0.0,
            max_batch_size=0,
        )
        print(json.dumps([[int(token) for token in result.hypotheses[0]] for result in results]), flush=True)


if __name__ == "__main__":
    main()
