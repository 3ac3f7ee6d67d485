"""Folders with tokenizers of whole words whose special symbols have other ids than ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, processors

WORDS = ("the", "cat", "dog", "runs", "sat", "on", "mat", "black")
LAST = (*WORDS, "<unk>", "<pad>", "<s>", "</s>", "<mask>")
"""Special symbols after the words: 9, 10, 11 and 12."""


def keep_tokenizer(folder: Path, symbols: Sequence[str] = LAST, template: str | None = None) -> Path:
    """Write a tokenizer whose ids are the places of these symbols, and return its folder.

    Args:
        template: what it puts around a text, such as `<s> $A`; None: nothing.
    """
    content = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(symbols)}, unk_token="<unk>"))
    content.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}
    names = {name: text for name, text in names.items() if text in symbols}
    content.add_special_tokens([*names.values(), "<unk>"])
    if template is not None:
        named = [(text, symbols.index(text)) for text in ("<s>", "</s>")]
        content.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    folder.mkdir()
    content.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return folder
