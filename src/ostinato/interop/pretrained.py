"""A folder of the Hugging Face library as a model of ours: config.json, safetensors and tokenizer.json.

Read are JSON and safetensors, and nothing is ever unpickled. Weights become float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.data.disk import read_json_object
from ostinato.data.tokenizers import Tokenizers, read_kept
from ostinato.errors import CheckpointError, ConfigError
from ostinato.interop.architectures import ARCHITECTURES, Architecture
from ostinato.interop.weights import Table, load_weights, to_ours
from ostinato.models.build import Model, build_model, parameter_shapes
from ostinato.tasks.recipes import load_recipe

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "tf_model.h5", "model.ckpt")
_EXPERT = re.compile(r"(.*)\.block_sparse_moe\.experts\.(\d+)\.w([123])\.weight")
_FUSED = {
    ".attn.gqkv_proj.weight": [f".self_attn.{part}_proj.weight" for part in ("gate", "q", "k", "v")],
    ".mlp.gate_up_proj.weight": [f".mlp.{part}_proj.weight" for part in ("gate", "up")],
}
"""Maps that files hold as one (HrmText), by what they are in the tables."""
_RENAMED = {
    ".block_sparse_moe.gate.": ".mlp.gate.",
    ".attn.o_proj.": ".self_attn.o_proj.",
    "LayerNorm.gamma": "LayerNorm.weight",  # as TensorFlow's checkpoints, and the first files made of them, had it
    "LayerNorm.beta": "LayerNorm.bias",
}


@dataclass(frozen=True, slots=True)
class Pretrained:
    """What a folder holds: a recipe of its sizes, the model in evaluation mode, and its tokenizer, kept as it is."""

    recipe: Recipe
    model: Model
    tokenizers: Tokenizers


def read_pretrained(folder: str | Path, tokenizer: str | Path | None = None, name: str | None = None) -> Pretrained:
    """Read a model and its tokenizer.

    Args:
        tokenizer: a tokenizer.json, or a folder that holds one; None: the model's folder.
        name: of the recipe; None: the folder's.

    Raises:
        CheckpointError: no such model, one of an architecture or with options that are not known, weights that lack,
            that are not known, of other shapes, pickled or damaged. DataError: no tokenizer that can be read.
        ConfigError: sizes that do not fit each other.
    """
    return _read(Path(folder), read_config(Path(folder)), tokenizer, name or Path(folder).resolve().name)


def _read(folder: Path, given: dict[str, Any], tokenizer: str | Path | None, name: str) -> Pretrained:
    known = architecture_of(given, folder)
    try:
        settings = known.settings(given)
    except KeyError as error:
        raise CheckpointError(f"{folder / _CONFIG}: has no {error.args[0]}") from error
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        architecture = given["architectures"][0]
        raise CheckpointError(
            f"{folder / _CONFIG}: a value in it is none that a {architecture} can have: {error}"
        ) from error
    read = read_kept(Path(tokenizer or folder), special_ids(given), given.get("vocab_size"))
    settings |= {"name": name, "description": f"{name}, imported"}
    settings |= {"data.tokenizer": {"kind": "hf", "path": str(Path(tokenizer or folder).absolute())}}
    # A run of a folder has the splits that one names for it: a test split may lack.
    settings["evaluation.splits"] = ["dev"]
    settings |= {f"model.special_ids.{key}": value for key, value in read.special_ids}
    try:
        recipe = load_recipe(known.recipe, [f"{key}={_as_yaml(value)}" for key, value in settings.items()])
    except ConfigError as error:
        raise ConfigError(f"{folder / _CONFIG}: {_in_one_line(str(error))}") from error
    if recipe.model.reads == "masked" and read.special_ids.mask is None:
        raise CheckpointError(
            f"{tokenizer or folder}: its tokenizer has no mask symbol, which the model reads: name it as mask_token in "
            "tokenizer_config.json"
        )
    try:
        table = known.table(recipe.model)
        _compare_shapes(read_weights(folder, shapes_only=True), known, table, recipe.model)
        weights = _canonical(read_weights(folder), known)
        if given.get("tie_word_embeddings", True) and "lm_head.weight" in table.untied(weights):
            # Said to be tied, but lm_head has numbers of its own: these count, as in transformers, which writes such
            # folders of a T5 without tied embeddings. Whether outputs are scaled goes by the configuration alone.
            as_said = {"scale_decoder_outputs": given.get("scale_decoder_outputs", True)}
            return _read(folder, given | {"tie_word_embeddings": False} | as_said, tokenizer, name)
        model = build_model(recipe.model).eval()
        load_weights(model, table, weights)
    except CheckpointError as error:
        problems = _in_one_line(str(error))
        where = "" if problems.startswith(str(folder)) else f"{folder}: its weights do not fit its {_CONFIG}: "
        raise CheckpointError(f"{where}{problems}") from error
    return Pretrained(recipe, model, Tokenizers(read, read))


def _as_yaml(value: object) -> str:
    """Return a value on one line; YAML has no pairs of surrogates, as which JSON writes rare characters."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in text)


def read_config(folder: Path) -> dict[str, Any]:
    """Return what config.json holds.

    Raises:
        CheckpointError: there is no such folder, no such file in it, or it is damaged.
    """
    if not (folder / _CONFIG).is_file():
        missing = "it is a file: name its folder" if folder.exists() else "there is no such folder"
        reason = f"holds no {_CONFIG}" if folder.is_dir() else missing
        raise CheckpointError(f"{folder}: is no model of the Hugging Face library: {reason}")
    return read_json_object(folder / _CONFIG)


def architecture_of(given: Mapping[str, Any], folder: Path) -> Architecture:
    """Return how the model of a config.json becomes ours.

    Raises:
        CheckpointError: it is not known; those that are, are named.
    """
    names = given.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise CheckpointError(
            f"{folder / _CONFIG}: its architecture is {name!r}, which is not read: {', '.join(ARCHITECTURES)} are"
        )
    return ARCHITECTURES[name]


def special_ids(given: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the special ids that config.json names, of a symbol one or several.

    A target begins with decoder_start_token_id where there is one.

    Raises:
        CheckpointError: one of them is no id.
    """
    begin = given.get("decoder_start_token_id")
    if begin is None:
        # T5 and its relatives begin with the padding, which older files do not say.
        begin = given.get("pad_token_id") if given.get("is_encoder_decoder") else given.get("bos_token_id")
    named = {"pad": given.get("pad_token_id"), "bos": begin, "eos": given.get("eos_token_id")}
    found: dict[str, list[Any]] = {
        name: value if isinstance(value, list) and value else [value] for name, value in named.items()
    }
    for name, ids in found.items():
        for value in ids:
            if value is not None and (type(value) is not int or value < 0):
                raise CheckpointError(f"config.json: the id of {name} is {value!r}: must be a number from 0, or null")
    return {name: ids for name, ids in found.items() if None not in ids}


_OF_SEARCH: dict[str, object] = {
    "do_sample": False,
    "num_beams": 1,
    "length_penalty": 1.0,
    "early_stopping": False,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "suppress_tokens")),
}
"""Settings of `generate` with the values that they have where nothing is said."""
_OF_SAMPLING: dict[str, object] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "typical_p": 1.0}
"""Those of what is sampled."""


def other_ends(folder: Path, end: int) -> list[int]:
    """Return the end symbols besides one that a folder names: a run has one, and its outputs go on behind these."""
    named = [given.get("eos_token_id") for given in _of_generation(folder)]
    ids = {i for value in named for i in (value if isinstance(value, list) else [value]) if type(i) is int}
    return sorted(ids - {end})


def search_of(decoding: DecodingConfig) -> dict[str, Any]:
    """Return the settings of `generate` that search as `decoding` does, but for lengths, symbols and penalties of kind
    gnmt."""
    found: dict[str, Any] = {"do_sample": decoding.strategy == "sample", "num_beams": decoding.beam}
    if decoding.strategy == "sample":
        found |= {"temperature": decoding.temperature, "top_k": decoding.top_k or 0}
    if decoding.beam > 1:
        penalty = decoding.length_penalty
        found["length_penalty"] = penalty.alpha if penalty.kind == "exponent" else 0.0
        found["early_stopping"] = True if decoding.stopping == "count" else "never"
    return found


def other_search(folder: Path, decoding: DecodingConfig) -> list[str]:
    """Return the settings of `generate` that a folder names and that a run with this `decoding` does not search by, but
    for lengths and ends."""
    given = {name: value for one in _of_generation(folder) for name, value in one.items()}
    samples = given.get("do_sample") or decoding.strategy == "sample"
    searched = _OF_SEARCH | (_OF_SAMPLING if samples else {}) | search_of(decoding)
    stated = ((name, given.get(name), own) for name, own in searched.items())
    return [
        f"{name}={value}"
        for name, value, own in stated
        if value not in (None, []) and (value != own or isinstance(value, bool) != isinstance(own, bool))
    ]


def other_rates(folder: Path, dropout: float) -> list[str]:
    """Return the rates of training that a folder names and that a run with this `model.dropout` does not train by."""
    given = read_config(folder)
    own = {
        # The run drops embeddings as it does the outputs of sub-layers.
        **dict.fromkeys(("embd_pdrop", "embedding_dropout"), dropout),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
        **dict.fromkeys(("router_jitter_noise", "router_aux_loss_coef", "aux_loss_coef"), 0.0),
    }
    return [f"{name}={given[name]}" for name, rate in own.items() if given.get(name) not in (None, rate)]


def _of_generation(folder: Path) -> list[dict[str, Any]]:
    """Return the files of a folder that may hold settings of `generate`; those of the last one count."""
    files = (folder / _CONFIG, folder / "generation_config.json")
    return [read_json_object(file) for file in files if file.is_file()]


def _compare_shapes(files: Mapping[str, Tensor], known: Architecture, table: Table, config: ModelConfig) -> None:
    """Compare what a configuration promises with what the files hold, before anything is built or read.

    Names come first: of a model with more layers than the files have, not even the shapes are made.

    Args:
        files: tensors without memory.

    Raises:
        CheckpointError: as `to_ours`; tensors of one parameter that do not fit each other; a configuration of larger
            tensors than there can be.
    """
    try:
        theirs = _canonical(files, known)
    except RuntimeError as error:
        raise CheckpointError(f"tensors that become one do not fit each other: {error}") from error
    try:
        shapes = parameter_shapes(config) if table.names() <= table.whole(theirs).keys() else None
    except RuntimeError as error:  # the product of two sizes that are each allowed
        raise CheckpointError(f"it promises tensors larger than there can be: {error}") from error
    to_ours(table, theirs, shapes)


def read_weights(folder: Path, *, shapes_only: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a folder by their names, from one file or from several that an index names.

    Args:
        shapes_only: read the headers alone, and return tensors without memory (on torch's meta device).

    Raises:
        CheckpointError: there are none, they are pickled, a file is missing or damaged.
    """
    if (folder / _WEIGHTS).is_file():
        names = [_WEIGHTS]
    elif (folder / _INDEX).is_file():
        parts = read_json_object(folder / _INDEX).get("weight_map")
        if not isinstance(parts, dict):
            raise CheckpointError(f"{folder / _INDEX}: its weight_map is {parts!r}: must name the file of every tensor")
        names = sorted({str(name) for name in parts.values()})
    elif pickled := [name for name in _PICKLES if (folder / name).exists()]:
        raise CheckpointError(
            f"{folder / pickled[0]}: no pickled weights are ever read: save them as safetensors, with transformers "
            "model.save_pretrained(FOLDER)"
        )
    else:
        raise CheckpointError(f"{folder}: holds no weights ({_WEIGHTS})")
    found: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{folder / _INDEX}: names {name!r}, which is no file beside it")
        try:
            found |= _shapes_in(folder / name) if shapes_only else load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / name}: cannot be read as weights: {error}") from error
    return found


def _shapes_in(file: Path) -> dict[str, Tensor]:
    with safe_open(file, "pt") as opened:
        return {name: torch.empty(opened.get_slice(name).get_shape(), device="meta") for name in opened.keys()}  # noqa: SIM118


def _canonical(weights: Mapping[str, Tensor], known: Architecture) -> dict[str, Tensor]:
    """Return the tensors in float32 under the names that the tables have: one tensor for all experts of a layer, and
    one for each of several maps that are fused."""
    plain: dict[str, Tensor] = {}
    experts: dict[str, dict[tuple[int, int], Tensor]] = {}
    is_body = known.prefix and not any(name.startswith(known.prefix) for name in weights)
    for name, x in weights.items():
        x = x.float() if x.is_floating_point() else x
        if found := _EXPERT.fullmatch(name):
            experts.setdefault(found[1], {})[int(found[2]), int(found[3])] = x
        else:
            name = f"{known.prefix}{name}" if is_body else name
            for old, new in _RENAMED.items():
                name = name.replace(old, new)
            fused = next((end for end in _FUSED if name.endswith(end)), "")
            parts = _FUSED.get(fused, [""])
            plain |= {
                name.removesuffix(fused) + part: y
                for part, y in zip(parts, x.chunk(len(parts)) if fused else [x], strict=False)
            }
    for layer, of_layer in experts.items():
        numbers = sorted({number for number, _ in of_layer})
        lacks = [
            f"{layer}.block_sparse_moe.experts.{n}.w{m}" for n in numbers for m in (1, 2, 3) if (n, m) not in of_layer
        ]
        if lacks:
            raise CheckpointError("\n".join(f"{name}.weight is missing" for name in lacks))
        gate_up = [torch.cat([of_layer[n, 1], of_layer[n, 3]]) for n in numbers]
        plain[f"{layer}.mlp.experts.gate_up_proj"] = torch.stack(gate_up)
        plain[f"{layer}.mlp.experts.down_proj"] = torch.stack([of_layer[n, 2] for n in numbers])
    return plain


def _in_one_line(problems: str) -> str:
    """Return the first problems of several lines, in one line; errors leave out lines that are too many to count."""
    lines = problems.split("\n")
    return "; ".join(lines[:3]) + ("; and more" if len(lines) > 3 else "")
