"""A run as a folder of the Hugging Face library.

config.json               our configuration (`ostinato.hf.configuration`), and what names the library's classes
model.safetensors         the weights, under our names behind "model."
generation_config.json    the recipe's decoding, as far as `generate` has such settings
tokenizer.json, tokenizer_config.json    a fast tokenizer with our special symbols
README.md                 a model card: recipe, results, how to load it
modeling_ostinato.py      imports ostinato.hf, for trust_remote_code
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast

from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import EncoderConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.config.training import PlannedRoundsConfig, TrainingConfig
from ostinato.data.disk import new_folder, write_json, write_text
from ostinato.data.pieces import KeptTokenizer, SubwordTokenizer
from ostinato.data.symbols import LabelTokenizer, SymbolTokenizer
from ostinato.data.tokenizer import Tokenizer
from ostinato.errors import CheckpointError
from ostinato.evaluation.loading import LoadedRun
from ostinato.hf.card import model_card
from ostinato.hf.configuration import OstinatoConfig
from ostinato.hf.encoder import (
    OstinatoForMaskedLM,
    OstinatoForQuestionAnswering,
    OstinatoForSequenceClassification,
    OstinatoForTokenClassification,
)
from ostinato.hf.language_model import OstinatoForCausalLM
from ostinato.hf.modeling import OstinatoPreTrainedModel
from ostinato.hf.seq2seq import OstinatoForSeq2SeqLM
from ostinato.interop.unrolled import as_plain

_CLASSES: dict[str, tuple[type[OstinatoPreTrainedModel], str]] = {
    "pair": (OstinatoForSeq2SeqLM, "AutoModelForSeq2SeqLM"),
    "sequence": (OstinatoForCausalLM, "AutoModelForCausalLM"),
    "masked": (OstinatoForMaskedLM, "AutoModelForMaskedLM"),
    "classification": (OstinatoForSequenceClassification, "AutoModelForSequenceClassification"),
    "tagging": (OstinatoForTokenClassification, "AutoModelForTokenClassification"),
    "span": (OstinatoForQuestionAnswering, "AutoModelForQuestionAnswering"),
}
"""By what a model reads: the class, and the Auto class that finds it."""
_CODE = "modeling_ostinato"
_NAMES = {"pad": "<pad>", "bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "mask": "<mask>"}


def export_run(run: LoadedRun, folder: str | Path) -> Path:
    """Write a run as a model of the Hugging Face library into a new folder.

    Raises:
        CheckpointError: the folder is there; a model or a tokenizer that cannot be written so.
    """
    folder = Path(folder)
    check_new(folder)
    model = wrapped(run)
    tokenizer = fast_tokenizer(run)
    with new_folder(folder) as target:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
        write_text(target / f"{_CODE}.py", _code(type(model)))
        write_text(target / "README.md", model_card(run, _CLASSES[run.model.config.reads][1]))
    return folder


def wrapped(run: LoadedRun) -> OstinatoPreTrainedModel:
    """Return a run's model as one of the Hugging Face library, with the same parameters.

    Raises:
        CheckpointError: the model is a recurrence, or a prefix language model.
    """
    given = run.model.config
    kind, auto = _CLASSES[given.reads]
    training, execution = run.recipe.training, run.model.current_execution
    more: dict[str, Any] = {}
    if isinstance(target := run.tokenizers.target, LabelTokenizer):
        more = {
            "id2label": dict(enumerate(target.labels)),
            "label2id": {label: i for i, label in enumerate(target.labels)},
        }
    config = OstinatoConfig(
        model=given.model_dump(mode="json"),
        balance=training.balance.model_dump(mode="json"),
        halting=training.halting.model_dump(mode="json"),
        round_loss=training.round_loss.model_dump(mode="json"),
        label_smoothing=training.label_smoothing,
        left_out=_left_out(training),
        halting_threshold=execution.halting_threshold,
        exit=execution.exit,
        exit_scope=execution.exit_scope,
        architectures=[kind.__name__],
        auto_map={"AutoConfig": f"{_CODE}.OstinatoConfig", auto: f"{_CODE}.{kind.__name__}"},
        **more,
    )
    made = kind(config)
    made.model.load_state_dict(run.model.state_dict())
    if given.generates:
        made.generation_config = generation_config(run.decoding(), run.model.special_ids)
    made.eval()
    return made


def _left_out(training: TrainingConfig) -> list[str] | None:
    """Return the settings that change what a pass of training computes, and that a Trainer does not know of."""
    halting = training.halting
    there = {
        "rounds": training.rounds != PlannedRoundsConfig(),
        "consistency": training.consistency.is_there,
        "halting.off_updates": halting.off_updates,
        "halting.warmup": halting.warmup,
        "halting.capacity_warmup": halting.capacity_warmup,
        "freeze": training.freeze,
    }
    return [f"training.{name}" for name, is_set in there.items() if is_set] or None


def generation_config(decoding: DecodingConfig, special: SpecialIds) -> GenerationConfig:
    """Return the settings of `generate` that search as a recipe's decoding does.

    The padding and begin symbols are never written, as with us. A length penalty of kind gnmt has no counterpart there:
    scores are then sums of log-probabilities (length_penalty 0). Lengths in proportion to the source have none either.
    """
    is_drawn, penalty = decoding.strategy == "sample", decoding.length_penalty
    settings: dict[str, Any] = {
        "max_new_tokens": max(1, decoding.max_length),
        "min_new_tokens": decoding.min_length or None,
        "do_sample": is_drawn,
        "num_beams": decoding.beam,
        "pad_token_id": special.pad,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "decoder_start_token_id": special.bos,
        "suppress_tokens": sorted({special.pad, special.bos} - {special.eos}) or None,
    }
    if is_drawn:
        settings |= {"temperature": decoding.temperature, "top_k": decoding.top_k or 0}
    if decoding.beam > 1:
        settings |= {
            "length_penalty": penalty.alpha if penalty.kind == "exponent" else 0.0,
            "early_stopping": True if decoding.stopping == "count" else "never",
        }
    return GenerationConfig(**settings)


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
    content.add_special_tokens([*first, *([_NAMES["mask"]] if has_mask else [])])
    return content


def _code(kind: type[OstinatoPreTrainedModel]) -> str:
    return (
        '"""Classes of this model: they are those of the package ostinato."""\n\n'
        "try:\n"
        f"    from ostinato.hf import OstinatoConfig as _Config, {kind.__name__} as _Model\n"
        "except ImportError as error:\n"
        "    raise ImportError(\"this model needs ostinato: pip install 'ostinato[hf]'\") from error\n\n\n"
        "class OstinatoConfig(_Config):\n    pass\n\n\n"
        f"class {kind.__name__}(_Model):\n    config_class = OstinatoConfig\n"
    )


def export_plain(run: LoadedRun, folder: str | Path, name: str) -> Path:
    """Write a run as a plain model of another architecture, its shared weights repeated (`ostinato.interop.unrolled`).

    What serves that architecture serves the folder; it needs no code of ours.

    Args:
        name: llama, qwen3, gpt2, marian, bart or t5.

    Raises:
        ConfigError: that architecture computes something else; every setting that differs.
        CheckpointError: the folder is there, or a tokenizer that cannot be written so.
    """
    folder = Path(folder)
    check_new(folder)
    given, tensors = as_plain(run.model, name)
    tokenizer = fast_tokenizer(run)
    with new_folder(folder) as target:
        write_json(target / "config.json", given)
        save_file({key: x.contiguous() for key, x in tensors.items()}, target / "model.safetensors", {"format": "pt"})
        tokenizer.save_pretrained(target)
        generation_config(run.decoding(), run.model.special_ids).save_pretrained(target)
        write_text(target / "README.md", model_card(run, _CLASSES[run.model.config.reads][1], is_plain=True))
    return folder


def check_new(folder: Path) -> None:
    """Refuse a folder that is there.

    Raises:
        CheckpointError: it is.
    """
    if folder.exists():
        raise CheckpointError(f"{folder}: is there already, and nothing is overwritten: name a new folder")
