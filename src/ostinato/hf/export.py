"""A run as a folder of the Hugging Face library.

config.json               our configuration (`ostinato.hf.configuration`), and what names the library's classes
model.safetensors         the weights, under our names behind "model."
generation_config.json    the recipe's decoding, as far as `generate` has such settings
tokenizer.json, tokenizer_config.json    a fast tokenizer with our special symbols
README.md                 a model card: recipe, results, how to load it
modeling_ostinato.py      imports ostinato.hf, for trust_remote_code
"""

from __future__ import annotations

from math import floor
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import GenerationConfig

from ostinato.config.special_ids import SpecialIds
from ostinato.config.training import PlannedRoundsConfig, TrainingConfig
from ostinato.data.disk import write_json, write_text
from ostinato.data.output_files import check_new_folder, new_output_folder
from ostinato.data.symbols import LabelTokenizer
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
from ostinato.hf.fast_tokenizer import fast_tokenizer, renumbered
from ostinato.hf.language_model import OstinatoForCausalLM
from ostinato.hf.modeling import OstinatoPreTrainedModel
from ostinato.hf.seq2seq import OstinatoForSeq2SeqLM
from ostinato.interop.pretrained import search_of
from ostinato.interop.unrolled import as_plain
from ostinato.tasks.registry import task_config

_CLASSES: dict[str, type[OstinatoPreTrainedModel]] = {
    "pair": OstinatoForSeq2SeqLM,
    "sequence": OstinatoForCausalLM,
    "masked": OstinatoForMaskedLM,
    "classification": OstinatoForSequenceClassification,
    "tagging": OstinatoForTokenClassification,
    "span": OstinatoForQuestionAnswering,
}
"""By what a model reads."""


def export_run(run: LoadedRun, folder: str | Path) -> Path:
    """Write a run as a model of the Hugging Face library into a new folder.

    Raises:
        CheckpointError: the folder is there; a model or a tokenizer that cannot be written so.
    """
    folder = Path(folder)
    check_new_folder(folder)
    run.check_exportable()
    model = wrapped(run)
    tokenizer = fast_tokenizer(run)
    tokenizer.model_max_length = _longest_input(run)
    with new_output_folder(folder) as target:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
        write_text(target / "README.md", model_card(run, model.auto))
    return folder


def wrapped(run: LoadedRun) -> OstinatoPreTrainedModel:
    """Return a run's model as one of the Hugging Face library, with the same parameters.

    Raises:
        CheckpointError: the model is a recurrence, a prefix language model, or an encoder of facts, or was loaded with
            lengths of its rounds.
    """
    given = run.model.config
    if given.max_words is not None:
        raise CheckpointError("an encoder that reads facts, a grid of words, has no counterpart in that library")
    kind = _CLASSES[given.reads]
    training, execution = run.recipe.training, run.model.current_execution
    if execution.paths:
        reason = "the run was loaded with lengths of its rounds (round_lengths), which exported models do not have"
        raise CheckpointError(f"{reason}: load it without")
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
        max_position_embeddings=longest_sequence(run),
        halting_threshold=execution.halting_threshold,
        exit=execution.exit,
        exit_scope=execution.exit_scope,
        architectures=[kind.__name__],
        **more,
    )
    made = kind(config)
    made.model.load_state_dict(run.model.state_dict())
    if given.generates:
        made.generation_config = search_settings(run, run.model.special_ids)
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


def search_settings(run: LoadedRun, special: SpecialIds) -> GenerationConfig:
    """Return the settings of `generate` that search as a run's decoding does.

    The padding and begin symbols are never written, as with us. A length penalty of kind gnmt has no counterpart there:
    scores are then sums of log-probabilities (length_penalty 0). Lengths in proportion to the source have none either:
    the most becomes that of the longest one, or as many as there are positions, and the least is left out.
    """
    decoding, most = run.decoding(), run.model.longest_target
    n_source = longest_sequence(run) if run.reads_prompts else run.recipe.data.max_source_length
    n_new = max(1, decoding.max_length + floor(decoding.max_length_ratio * n_source + 1e-9))
    settings = {
        "max_new_tokens": n_new if most is None else min(n_new, most),
        "min_new_tokens": max(0, decoding.min_length - 1) or None,  # without the end symbol, which ours counts
        "pad_token_id": special.pad,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "decoder_start_token_id": special.bos,
        "suppress_tokens": sorted({special.pad, special.bos} - {special.eos}) or None,
    }
    return GenerationConfig(**settings, **search_of(decoding))


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
    check_new_folder(folder)
    run.check_exportable()
    # A table of positions has room for what `generate` writes.
    n_new = search_settings(run, run.model.special_ids).max_new_tokens if run.model.config.has_two_sides else 0
    plain = as_plain(run.model, name, max(longest_sequence(run), n_new))
    tokenizer = renumbered(fast_tokenizer(run), plain.ids)
    tokenizer.model_max_length = _longest_input(run)
    special = SpecialIds(**{key: plain.config[f"{key}_token_id"] for key in ("pad", "bos", "eos")})
    with new_output_folder(folder) as target:
        write_json(target / "config.json", plain.config)
        tensors = {key: x.contiguous() for key, x in plain.tensors.items()}
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
        tokenizer.save_pretrained(target)
        search_settings(run, special).save_pretrained(target)
        write_text(target / "README.md", model_card(run, _CLASSES[run.model.config.reads].auto, is_plain=True))
    return folder


def longest_sequence(run: LoadedRun) -> int:
    """Return the most tokens that a run's model is given at once; a source and its target may be one sequence."""
    data, model, has_sources = run.recipe.data, run.model.config, task_config(run.recipe.task).has_sources
    if model.has_two_sides:
        return max(data.max_source_length, data.max_target_length)
    of_target = data.max_target_length * (model.generates or model.reads == "masked")
    of_source = data.max_source_length * (has_sources or not of_target)
    longest = max(data.block_length or 0, of_target + of_source)
    # Texts in blocks may be longer than there are positions.
    stacks = model.stacks().values()
    return min(longest, *(stack.positions.max_length for stack in stacks if stack.positions.kind == "learned"), longest)


def _longest_input(run: LoadedRun) -> int:
    """Return the most tokens that a run's tokenizer writes at once: a source's, or, where the model reads both as one
    sequence, also those of its target behind it."""
    return run.recipe.data.max_source_length if run.model.config.has_two_sides else longest_sequence(run)
