"""Tokenizers of runs as fast ones of the Hugging Face library, with the same ids, or with others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ostinato.config.model import EncoderConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.data.pieces import KeptTokenizer, SubwordTokenizer
from ostinato.data.symbols import LabelTokenizer, SymbolTokenizer
from ostinato.data.tokenizer import Tokenizer
from ostinato.errors import CheckpointError, DataError
from ostinato.evaluation.loading import LoadedRun

_NAMES = {"pad": "<pad>", "bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "mask": "<mask>"}


def fast_tokenizer(run: LoadedRun) -> PreTrainedTokenizerFast:
    """Return a fast tokenizer with the run's ids; of a model with two vocabularies it must be a joint one.

    Raises:
        CheckpointError: source and target have tokenizers of their own.
    """
    both = run.tokenizers
    if not both.is_joint and not isinstance(both.target, LabelTokenizer):
        raise CheckpointError(
            "source and target have a tokenizer each, and a model of the Hugging Face library has one: train with a "
            "joint one (no data.target_tokenizer)"
        )
    tokenizer = both.source
    if isinstance(tokenizer, KeptTokenizer):
        texts = tokenizer.special_texts
        named = {f"{key}_token": texts[i] for key, i in tokenizer.special_ids if i is not None}
        content = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        content.encode_special_tokens = False
        reads_two = run.model.config.reads in ("classification", "span")
        _surround(content, tokenizer, _templates(run), reads_two=reads_two)
        return PreTrainedTokenizerFast(tokenizer_object=content, **named)
    reads_all = isinstance(run.model.config, EncoderConfig)
    content = _with_symbols(tokenizer, has_mask=reads_all)
    special = SpecialIds()
    single, pair = _templates(run)
    content.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[("<bos>", special.bos), ("<eos>", special.eos)],
    )
    names = {f"{key}_token": text for key, text in _NAMES.items() if key != "mask" or reads_all}
    return PreTrainedTokenizerFast(tokenizer_object=content, clean_up_tokenization_spaces=False, **names)


def _surround(
    content: tokenizers.Tokenizer, kept: KeptTokenizer, templates: tuple[str, str], *, reads_two: bool
) -> None:
    """Set a post-processor that puts the symbols around a text that the model was trained with, unless there is one.

    Args:
        templates: see `_templates`. reads_two: whether the model may read two texts in one.

    Raises:
        CheckpointError: the tokenizer adds pieces of its own that cannot be joined with these, or reads no word.
    """
    special, probe = kept.special_ids, _some_word(kept)
    word, whole = content.encode(probe, add_special_tokens=False).ids, kept.encode(probe)
    ids = {"<bos>": [special.bos], "<eos>": [special.eos], "$A": whole, "$B": whole}
    single, pair = ([i for piece in template.split() for i in ids[piece]] for template in templates)

    def is_read_so() -> bool:
        return content.encode(probe).ids == single and (not reads_two or content.encode(probe, probe).ids == pair)

    if is_read_so():
        return
    start = next((i for i in range(len(whole)) if whole[i : i + len(word)] == word), 0)
    before, behind = whole[:start], whole[start + len(word) :]
    texts = {i: content.id_to_token(i) or "<pad>" for i in (special.bos, special.eos, *before, *behind)}
    # One template for both: of two in a row the library leaves the second one out, or ends the program.
    pieces = {"<bos>": [texts[special.bos]], "<eos>": [texts[special.eos]]}
    for sequence in ("$A", "$B"):
        pieces[sequence] = [*(texts[i] for i in before), sequence, *(texts[i] for i in behind)]
    of_one, of_two = ([text for piece in template.split() for text in pieces[piece]] for template in templates)
    named = [(text, i) for i, text in texts.items()]
    content.post_processor = processors.TemplateProcessing(of_one, of_two, named)
    if not is_read_so():
        raise CheckpointError("what the tokenizer's own post-processor puts around a text cannot be joined with ours")


def _some_word(kept: KeptTokenizer) -> str:
    """Return a text that the tokenizer reads, by other pieces than those that it puts around every text."""
    around = set(kept.encode(""))
    for i in sorted(set(range(kept.vocab_size)) - kept.special_tokens):
        try:
            if (word := kept.decode([i]).strip()) and not around.issuperset(kept.encode(word)):
                return word
        except DataError:  # a piece that no text is read as by itself
            continue
    raise CheckpointError("the tokenizer reads no word of its own vocabulary")


def _templates(run: LoadedRun) -> tuple[str, str]:
    """Return what surrounds one text, and two."""
    match run.model.config.reads:
        case "pair":
            return "$A <eos>", "$A <eos> $B <eos>"
        case "sequence" if run.reads_prompts:
            return "<bos> $A", "<bos> $A $B"
        case "sequence":  # source and target are one sequence, whose source is the prompt
            return "$A <eos> <bos>", "$A <eos> <bos> $B <eos>"
        case _:
            return "<bos> $A <eos>", "<bos> $A <eos> $B <eos>"


def _with_symbols(tokenizer: Tokenizer, *, has_mask: bool) -> tokenizers.Tokenizer:
    """Return a tokenizer of the `tokenizers` library with our ids, special symbols included."""
    first = {text: i for i, text in enumerate(_NAMES.values()) if text != _NAMES["mask"]}
    if isinstance(tokenizer, SymbolTokenizer):
        vocabulary = first | {symbol: i for i, symbol in enumerate(tokenizer.symbols, len(first))}
        if len(vocabulary) != tokenizer.vocab_size:
            raise CheckpointError("the vocabulary has words that are special symbols of the exported tokenizer")
        content = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=_NAMES["unk"]))
        if tokenizer.kind == "words":
            content.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        else:
            content.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]"), "isolated")
            content.decoder = decoders.Fuse()
    elif isinstance(tokenizer, SubwordTokenizer):
        try:
            content = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.moved_up(list(first))))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"the tokenizer cannot be written as a fast tokenizer: {error}") from error
    else:
        raise CheckpointError(f"a tokenizer of kind {tokenizer.kind} cannot be written as a fast tokenizer")
    content.add_special_tokens([*first])
    if has_mask:
        # Blanks around it belong to the pieces that it stands for and that follow, which have their own.
        left = isinstance(tokenizer, SubwordTokenizer)
        right = isinstance(tokenizer, SubwordTokenizer) and tokenizer.leading_space
        content.add_special_tokens([tokenizers.AddedToken(_NAMES["mask"], special=True, lstrip=left, rstrip=right)])
        if content.token_to_id(_NAMES["mask"]) != tokenizer.vocab_size:  # the library chooses it by what is there
            reason = "its ids have gaps, or it has that piece: train with a tokenizer that has neither"
            raise CheckpointError(f"<mask> cannot have the id of its row in the exported tokenizer: {reason}")
    return content


def renumbered(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with other ids; one that has them already is returned as it is.

    Args:
        ids: of every new id the old one. Where they are others, the last one is the padding's.

    Raises:
        CheckpointError: a tokenizer of a kind whose ids are not known here.
    """
    if list(ids) == list(range(len(ids))):
        return tokenizer
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    new = {old: i for i, old in enumerate(ids[:-1])}
    pad = tokenizer.pad_token if tokenizer.pad_token_id not in new else _NAMES["pad"]
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, dict):
        kept = {text: new[i] for text, i in vocabulary.items() if i in new}
        content["model"]["vocab"] = kept | {pad: len(new)}
    elif isinstance(vocabulary, list):  # pieces with scores, in the order of their ids
        worst = min(score for _, score in vocabulary)
        content["model"]["vocab"] = [vocabulary[i] for i in ids[:-1] if i < len(vocabulary)] + [[pad, worst]]
        unknown = content["model"].get("unk_id")
        content["model"]["unk_id"] = None if unknown is None else new[unknown]
    else:
        raise CheckpointError(f"a tokenizer of kind {content['model'].get('type')} cannot be given other ids")
    special = [one | {"id": new[one["id"]]} for one in content["added_tokens"] if one["id"] in new]
    padding = next(one for one in content["added_tokens"] if one["special"])
    content["added_tokens"] = [*special, padding | {"id": len(new), "content": pad}]
    content["post_processor"] = _with_ids(content["post_processor"], new, len(new))
    named = {name: text for name, text in tokenizer.special_tokens_map.items() if text != pad}
    texts = {one["content"] for one in content["added_tokens"]}
    named = {name: text for name, text in named.items() if text in texts} | {"pad_token": pad}
    made = tokenizers.Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **named)


def _with_ids(processor: Any, new: dict[int, int], other: int) -> Any:
    """Return a post-processor with new ids of its symbols; `other`: the id of those that have no new one."""
    if processor is None:
        return None
    if processor["type"] == "Sequence":
        return processor | {"processors": [_with_ids(one, new, other) for one in processor["processors"]]}
    changed = dict(processor)
    if "special_tokens" in processor:
        changed["special_tokens"] = {
            text: one | {"ids": [new.get(i, other) for i in one["ids"]]}
            for text, one in processor["special_tokens"].items()
        }
    for name in ("sep", "cls"):
        if name in processor:
            text, i = processor[name]
            changed[name] = [text, new.get(i, other)]
    return changed
