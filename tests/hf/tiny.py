"""Tiny models of the transformers library with random weights, and a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from ostinato.data.batch import Batch, Tokens

VOCABULARY = 50
SPECIAL = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}

_IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA: dict[str, Any] = {
    **_IDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
_PAIR: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 32,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_ff": 24,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {**_IDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}),
    "llama": ("LlamaForCausalLM", _LLAMA),
    "llama3": ("LlamaForCausalLM", {**_LLAMA, "rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", {**_LLAMA, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", _LLAMA),
    "qwen3": ("Qwen3ForCausalLM", {**_LLAMA, "head_dim": 8, "tie_word_embeddings": True}),
    "mixtral": ("MixtralForCausalLM", {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "jetmoe": (
        "JetMoeForCausalLM",
        {
            **{key: value for key, value in _LLAMA.items() if key != "num_attention_heads"},
            "kv_channels": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 0.5,  # of the final norm; the others have their own
        },
    ),
    "hrm-text": (
        "HrmTextForCausalLM",
        {key: value for key, value in _LLAMA.items() if key != "num_key_value_heads"}
        | {"head_dim": 4, "num_hidden_layers": 1, "H_cycles": 2, "L_cycles": 2},
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**_IDS, **_BERT, "num_hidden_layers": 4, "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "bert": ("BertForMaskedLM", _BERT),
    "albert": ("AlbertForMaskedLM", {**_BERT, "num_hidden_layers": 4, "embedding_size": 8, "num_hidden_groups": 2}),
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5-1.1": (
        "T5ForConditionalGeneration",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1},
    ),
    "marian": (
        "MarianMTModel",
        {**_PAIR, "pad_token_id": 49, "decoder_start_token_id": 49, "eos_token_id": 2, "scale_embedding": True},
    ),
    "bart": ("BartForConditionalGeneration", _PAIR),
}
"""By a short name: the class, and the sizes of its configuration."""


def tiny_model(name: str, **more: Any) -> Any:
    """Return a model all of whose parameters are random, none of them a zero or a one that hides an error."""
    class_name, sizes = MODELS[name]
    kind = getattr(transformers, class_name)
    model = kind(kind.config_class(**{**sizes, **more})).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in {id(p): p for p in model.parameters() if p.requires_grad}.values():
            mean = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + mean)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(generator=generator)
    return model


def tokenizer() -> Tokenizer:
    """Return a tokenizer of words w5 ... w49, whose post-processing puts <s> before and </s> behind a text."""
    vocabulary = {text: i for i, text in enumerate(SPECIAL.values())}
    vocabulary |= {f"w{i}": i for i in range(len(vocabulary), VOCABULARY)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(SPECIAL.values()))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", vocabulary["<s>"]), ("</s>", vocabulary["</s>"])]
    )
    return made


def save_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer().save(str(folder / "tokenizer.json"))
    names = {f"{role}_token": text for role, text in SPECIAL.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")


def save(name: str, folder: Path, **more: Any) -> Any:
    """Write a model with a tokenizer into a folder, and return it. `more`: of its configuration."""
    model = tiny_model(name, **more)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def our_logits(model: Any, ids: torch.Tensor, n_prefix: int = 0) -> torch.Tensor:
    """Return the logits of a model of ours; of a pair those of the ids backwards as a target.

    Args:
        n_prefix: of a prefix language model the first columns, which see each other.
    """
    target = (ids.flip(1),) if model.config.has_two_sides else ()
    given: Any = ids
    if getattr(model.config, "mask", "causal") == "prefix":
        all_real = torch.ones_like(ids).bool()
        given = Batch(Tokens(ids, all_real), ids, all_real, prefix_lengths_B=torch.full((len(ids),), n_prefix))
    with torch.no_grad():
        return model(given, *target).logits_BTV  # type: ignore[no-any-return]
