"""Models of the transformers library become runs with the same logits; what cannot be read is said in one line."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers", reason="needs the extra hf")

import tiny
import transformers
from huggingface_hub.utils import filter_repo_objects

import ostinato
from ostinato.cli import main
from ostinato.config.decoding import DecodingConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.errors import CheckpointError, ConfigError, DataError, OstinatoError
from ostinato.interop.pretrained import other_search, read_pretrained
from ostinato.training.imported import import_run

IDS = torch.randint(5, 50, (3, 11), generator=torch.Generator().manual_seed(3))


def their_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    more = {"decoder_input_ids": ids.flip(1)} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **more).logits  # type: ignore[no-any-return]


@pytest.mark.sampled
@pytest.mark.parametrize("name", tiny.MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    if not hasattr(transformers, tiny.MODELS[name][0]):
        pytest.skip(f"transformers {transformers.__version__} has no {tiny.MODELS[name][0]}")
    theirs = tiny.save(name, tmp_path)
    found = tiny.our_logits(read_pretrained(tmp_path).model, IDS)
    expected = their_logits(theirs, IDS)
    assert float(expected.abs().max()) > 0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(not hasattr(transformers, "HrmTextForCausalLM"), reason="transformers without HrmText")
def test_a_prefix_whose_tokens_see_each_other_is_one(tmp_path: Path) -> None:
    theirs = tiny.save("hrm-text", tmp_path / "model")
    assert theirs.config.prefix_lm
    import_run(str(tmp_path / "model"), tmp_path / "run")
    run = ostinato.load(tmp_path / "run")
    marks = (torch.arange(IDS.shape[1]) < 4).long().expand_as(IDS)
    with torch.no_grad():
        expected, causal = theirs(IDS, token_type_ids=marks).logits, theirs(IDS).logits
    assert float((expected - causal).abs().max()) > 0.1
    torch.testing.assert_close(tiny.our_logits(run.model, IDS, 4), expected, rtol=0, atol=1e-5)
    prompt = torch.tensor([[1, 7, 11, 30]])
    written = theirs.generate(
        prompt, token_type_ids=torch.ones_like(prompt), max_new_tokens=9, do_sample=False, suppress_tokens=[0, 1]
    )[0, 4:].tolist()
    assert run.model.generate(prompt, max_length=9) == [written[: written.index(2)] if 2 in written else written]
    found = run.generate(["w7 w11 w30"], strategy="greedy", max_length=9)[0]
    assert found == f" {run.tokenizers.target.decode(written)}"
    change_config(tmp_path / "model", prefix_lm=False)
    assert read_pretrained(tmp_path / "model").model.config.mask == "causal"  # type: ignore[union-attr]


@pytest.mark.skipif(not hasattr(transformers, "HrmTextForCausalLM"), reason="transformers without HrmText")
def test_embeddings_that_are_tied_need_no_output_in_the_file(tmp_path: Path) -> None:
    theirs = tiny.save("hrm-text", tmp_path, tie_word_embeddings=True)
    found = tiny.our_logits(read_pretrained(tmp_path).model, IDS)
    torch.testing.assert_close(found, their_logits(theirs, IDS), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save("llama", folder)
    return folder


@pytest.fixture
def damaged(llama: Path, tmp_path: Path) -> Path:
    """Return a copy to be damaged."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_run_has_the_tokenizer_as_it_is_and_writes_what_transformers_does(llama: Path, tmp_path: Path) -> None:
    import_run(str(llama), tmp_path / "run")
    run = ostinato.load(tmp_path / "run")
    assert run.model.special_ids == SpecialIds(pad=0, bos=1, eos=2, mask=4)
    # Post-processing puts both symbols around it; rows have them anyway.
    assert run.tokenizers.target.encode("w7 w11 w30") == [7, 11, 30]
    assert run.tokenizers.target.decode([1, 7, 11, 2, 0]) == "w7 w11"
    assert run.tokenizers.target.spans("w7 w11") == [(0, 2), (3, 6)]
    with pytest.raises(DataError, match="'w99' is not among"):
        run.tokenizers.target.encode("w7 w99")
    theirs = transformers.LlamaForCausalLM.from_pretrained(llama).eval()
    prompt = torch.tensor([[1, 7, 11, 30]])
    written = theirs.generate(prompt, max_new_tokens=9, do_sample=False)[0, 4:].tolist()
    found = run.generate(["w7 w11 w30"], strategy="greedy", max_length=9)[0]
    assert found == f" {run.tokenizers.target.decode(written)}"


@pytest.mark.parametrize(("ends", "own", "others"), [([48, 2], 2, "20, 48"), ([48, 7], 48, "7, 20"), (2, 2, "20")])
def test_of_several_end_symbols_the_others_are_named(damaged: Path, ends: Any, own: int, others: str) -> None:
    change_config(damaged, eos_token_id=ends)
    (damaged / "generation_config.json").write_text('{"eos_token_id": [2, 20]}' if own == 2 else '{"eos_token_id": 20}')
    said: list[str] = []
    found = import_run(str(damaged), damaged / "run", say=said.append)
    assert found.model.special_ids.eos == own  # that of the tokenizer, where it is one of them
    [line] = said
    assert line.endswith(f"outputs of the run end at the symbol {own} alone, of a model that also ends at {others}")


def test_settings_of_a_search_that_the_run_does_not_take_are_named(damaged: Path) -> None:
    change_config(damaged, num_beams=4, length_penalty=1.0)
    given = {"num_beams": 5, "no_repeat_ngram_size": 1, "early_stopping": True, "max_length": 9, "bad_words_ids": []}
    given |= {"forced_bos_token_id": 0, "forced_eos_token_id": 1, "do_sample": False, "repetition_penalty": 1}
    (damaged / "generation_config.json").write_text(json.dumps(given))
    said: list[str] = []
    import_run(str(damaged), damaged / "run", say=said.append)
    (line,) = said
    assert line.endswith(
        "the run searches by its own decoding.*, and not by do_sample=False, num_beams=5, early_stopping=True, "
        "no_repeat_ngram_size=1, forced_bos_token_id=0, forced_eos_token_id=1"
    )


SEARCHES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"strategy": "sample", "temperature": 0.8, "top_k": 50}, {"do_sample": True, "top_k": 50, "temperature": 0.8}, []),
    (
        {"strategy": "sample", "temperature": 0.8, "top_k": 50},
        {"do_sample": True, "top_k": 20, "top_p": 0.95, "temperature": 0.6, "min_p": 0.1, "typical_p": 0.9},
        ["temperature=0.6", "top_k=20", "top_p=0.95", "min_p=0.1", "typical_p=0.9"],
    ),
    ({"strategy": "sample", "temperature": 0.8}, {"do_sample": True, "top_k": 0, "top_p": 1.0, "typical_p": 1.0}, []),
    (
        {"strategy": "beam", "beam": 4, "length_penalty": {"kind": "exponent", "alpha": 0.6}, "stopping": "count"},
        {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
        [],
    ),
    ({"strategy": "beam", "beam": 4}, {"num_beams": 5, "do_sample": True}, ["do_sample=True", "num_beams=5"]),
    ({}, {"do_sample": False, "num_beams": 1, "top_k": 50, "temperature": 1.0}, []),
    ({}, {"do_sample": False, "temperature": 0.6, "top_p": 0.9}, []),  # neither samples
]


@pytest.mark.parametrize(("decoding", "given", "others"), SEARCHES)
def test_what_the_run_searches_by_is_not_named(
    decoding: dict[str, Any], given: dict[str, Any], others: list[str], tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    assert other_search(tmp_path, DecodingConfig.model_validate(decoding)) == others


RATES: list[tuple[str, dict[str, float], dict[str, float], list[str]]] = [
    ("gpt2", {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.3}, {"": 0.2, "self_attention": 0.3}, []),
    ("gpt2", {"resid_pdrop": 0.2, "embd_pdrop": 0.1}, {"": 0.2}, ["embd_pdrop=0.1"]),
    (
        "modernbert",
        {"attention_dropout": 0.1, "mlp_dropout": 0.2, "embedding_dropout": 0.3},
        {"": 0.0, "self_attention": 0.1, "ffn": 0.2},
        ["embedding_dropout=0.3"],
    ),
    ("jetmoe", {"attention_dropout": 0.3, "aux_loss_coef": 0.01}, {"self_attention": 0.3}, ["aux_loss_coef=0.01"]),
    (
        "mixtral",
        {"attention_dropout": 0.3, "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.1},
        {"self_attention": 0.3},
        ["router_jitter_noise=0.1", "router_aux_loss_coef=0.02"],
    ),
    ("bart", {"dropout": 0.2, "encoder_layerdrop": 0.1}, {"": 0.2}, ["encoder_layerdrop=0.1"]),
]


@pytest.mark.parametrize(("name", "given", "dropouts", "others"), RATES)
def test_rates_of_training_are_those_of_the_file_or_named(
    name: str, given: dict[str, float], dropouts: dict[str, float], others: list[str], tmp_path: Path
) -> None:
    tiny.save(name, tmp_path / "model", **given)
    said: list[str] = []
    found = import_run(str(tmp_path / "model"), tmp_path / "run", say=said.append)
    model: Any = found.recipe.model
    (stack, *_) = found.model.stacks
    for part, rate in dropouts.items():
        assert (getattr(getattr(model, stack), part) if part else model).dropout == rate
    expected = [f"the run trains by its own settings, and not by {', '.join(others)}"] if others else []
    assert [line.partition(": ")[2] for line in said if "trains" in line] == expected


@pytest.mark.parametrize("name", ["gpt2-\U0001f600", 'a "quoted" name', "a\\ud83d\\ude00", "two\nlines"])
def test_a_folder_may_have_any_name(llama: Path, name: str, tmp_path: Path) -> None:
    copied = tmp_path / name
    copied.mkdir()
    for file in llama.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    assert read_pretrained(copied).recipe.name == name


def test_names_of_the_first_files_of_bert_and_t5_are_read(tmp_path: Path) -> None:
    theirs = tiny.save("bert", tmp_path / "bert")
    file = tmp_path / "bert" / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = load_file(file)
    for now, then in old.items():
        weights = {name.replace(now, then): x for name, x in weights.items()}
    assert any("gamma" in name for name in weights)
    save_file(weights, file, metadata={"format": "pt"})
    found = read_pretrained(tmp_path / "bert")
    torch.testing.assert_close(tiny.our_logits(found.model, IDS), their_logits(theirs.eval(), IDS), rtol=0, atol=1e-4)
    tiny.save("t5", tmp_path / "t5")
    file = tmp_path / "t5" / "model.safetensors"
    more = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(32, 4)}
    save_file(load_file(file) | more, file, metadata={"format": "pt"})
    read_pretrained(tmp_path / "t5")


def rewritten(folder: Path, change: Any) -> None:
    """Replace the weights of a folder by what is made of them."""
    file = folder / "model.safetensors"
    save_file({name: x.clone() for name, x in change(load_file(file)).items()}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["qwen3", "bart", "marian"])
def test_files_of_the_body_alone_are_read(name: str, tmp_path: Path) -> None:
    theirs = tiny.save(name, tmp_path / name)
    if hasattr(theirs, "final_logits_bias"):  # which such files do not have: zeros
        theirs.final_logits_bias.zero_()

    def body(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            key.removeprefix("model."): x
            for key, x in weights.items()
            if key.startswith("model.") or not key.startswith(("lm_head", "final_logits_bias"))
        }

    rewritten(tmp_path / name, body)
    if name == "bart":
        change_config(tmp_path / name, architectures=["BartModel"])
    found = read_pretrained(tmp_path / name)
    torch.testing.assert_close(tiny.our_logits(found.model, IDS), their_logits(theirs.eval(), IDS), rtol=0, atol=1e-4)


def test_a_tied_tensor_may_have_either_name(tmp_path: Path) -> None:
    theirs = tiny.save("llama3", tmp_path / "llama3")
    rewritten(
        tmp_path / "llama3",
        lambda found: {"lm_head.weight" if "embed_tokens" in name else name: x for name, x in found.items()},
    )
    found = read_pretrained(tmp_path / "llama3")
    torch.testing.assert_close(tiny.our_logits(found.model, IDS), their_logits(theirs.eval(), IDS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("more", [{}, {"scale_decoder_outputs": False}])
@pytest.mark.parametrize("name", ["t5", "llama3", "gpt2"])
def test_an_output_of_its_own_counts_whatever_the_configuration_says(
    name: str, more: dict[str, bool], tmp_path: Path
) -> None:
    tiny.save(name, tmp_path / name)
    source = {"t5": "shared.weight", "llama3": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}[name]
    rewritten(tmp_path / name, lambda found: found | {"lm_head.weight": found[source].flip(0)})
    given = json.loads((tmp_path / name / "config.json").read_text())
    given.pop("scale_decoder_outputs", None)
    (tmp_path / name / "config.json").write_text(json.dumps(given | {"tie_word_embeddings": True} | more))
    if name == "gpt2":
        with pytest.raises(CheckpointError, match="tie_word_embeddings is False"):
            read_pretrained(tmp_path / name)
        return
    kind = getattr(transformers, tiny.MODELS[name][0])
    theirs = kind.from_pretrained(tmp_path / name).eval()
    found = read_pretrained(tmp_path / name)
    torch.testing.assert_close(tiny.our_logits(found.model, IDS), their_logits(theirs, IDS), rtol=0, atol=1e-4)


def test_an_imported_run_is_evaluated_and_fine_tuned(tmp_path: Path) -> None:
    tiny.save("bert", tmp_path / "bert")
    import_run(str(tmp_path / "bert"), tmp_path / "run")
    text = tmp_path / "text.txt"
    text.write_text("w7 w11 w30 w8 w9\nw20 w21 w22\n" * 4, encoding="utf-8")
    files = [f"data.train={text}", f"data.dev={text}"]
    before = ostinato.load(tmp_path / "run", overrides=files)
    assert before.model.mask_id == 4  # type: ignore[union-attr]
    perplexity = before.evaluate("dev")["perplexity"]
    recipe = ostinato.load_recipe(
        tmp_path / "run",
        [*files, f"training.init_from={tmp_path / 'run'}", "training.n_updates=30", "training.optimizer.lr=0.01",
         "training.schedule.warmup=1", "training.evaluate_every=30", "training.save_every=30"],
    )  # fmt: skip
    ostinato.train(recipe, tmp_path / "tuned")
    assert ostinato.load(tmp_path / "tuned").evaluate("dev")["perplexity"] < 0.8 * perplexity


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("gpt2", "marian"))) for name in tiny.MODELS]
)
def test_an_imported_model_is_planned_scored_trained_and_writes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not hasattr(transformers, tiny.MODELS[name][0]):
        pytest.skip(f"transformers {transformers.__version__} has no {tiny.MODELS[name][0]}")
    tiny.save(name, tmp_path / "model")
    import_run(str(tmp_path / "model"), tmp_path / "run")
    texts = [" ".join(f"w{5 + (3 * i + j) % 40}" for j in range(5)) for i in range(8)]
    is_pair = ostinato.load(tmp_path / "run").model.config.reads == "pair"
    rows = [{"source": text, "target": text} if is_pair else {"text": text} for text in texts]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    files = [f"data.train={file}", f"data.dev={file}"]
    run = ostinato.load(tmp_path / "run", overrides=files)
    recipe = ostinato.load_recipe(
        tmp_path / "run",
        [*files, f"training.init_from={tmp_path / 'run'}", "training.n_updates=1", "training.optimizer.lr=1e-3",
         "training.schedule.warmup=1", "training.evaluate_every=1", "training.save_every=1"],
    )  # fmt: skip
    main_exits(0, "plan", str(tmp_path / "run"))
    assert f"{run.model.n_parameters():,}" in capsys.readouterr().out
    before = run.evaluate("dev")["loss"]
    # No test split is asked for: it is scored on what is there.
    results = ostinato.train(recipe, tmp_path / "tuned")
    assert list(results["splits"]) == ["dev"]
    after = results["splits"]["dev"]["loss"]
    assert 0 < after < 1.5 * before
    assert after != before
    tuned = ostinato.load(tmp_path / "tuned")
    if tuned.model.config.generates:
        written = tuned.generate(texts[:2], strategy="greedy", max_length=6, max_length_ratio=0.0)
        assert [len(text.split()) <= 6 for text in written] == [True, True]
        assert set(" ".join(written).split()) <= {f"w{i}" for i in range(5, 50)} | set(tiny.SPECIAL.values())


def test_a_new_run_may_use_a_tokenizer_of_the_library_as_it_is(tmp_path: Path) -> None:
    tiny.save_tokenizer(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("w7 w11 w30 w8 w9\nw20 w21 w22\n" * 4, encoding="utf-8")
    sizes = ["model.d_model=16", "model.decoder={n_steps: 1, self_attention: {n_heads: 2}, ffn: {d_ff: 24}}"]
    recipe = ostinato.load_recipe(
        "lm/transformer",
        [*sizes, f"data.train={text}", f"data.dev={text}", f"data.tokenizer={{kind: hf, path: {tmp_path}}}",
         "data.block_length=null", "training.n_updates=1", "training.evaluate_every=1", "training.save_every=1",
         "training.schedule.warmup=1"],
    )  # fmt: skip
    ostinato.train(recipe, tmp_path / "run")
    (tmp_path / "tokenizer.json").unlink()  # the run has its own copy
    run = ostinato.load(tmp_path / "run")
    assert run.model.special_ids == SpecialIds(pad=0, bos=1, eos=2, mask=4)
    assert run.model.config.vocab_size == tiny.VOCABULARY
    assert run.tokenizers.target.encode("w7 w11 w30") == [7, 11, 30]


@pytest.mark.slow
def test_what_reads_runs_reads_imported_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = [f"w{5 + (7 * i) % 45}" for i in range(120)]
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{' '.join(words[i : i + 5])}\n" for i in range(24)), encoding="utf-8")
    for name in ("gpt2", "llama"):
        tiny.save(name, tmp_path / name)
        import_run(str(tmp_path / name), tmp_path / f"run-{name}")
    gpt2, llama = (str(tmp_path / f"run-{name}") for name in ("gpt2", "llama"))
    files = [part for name in ("train", "dev") for part in ("--set", f"data.{name}={text}")]
    analyses = [part for name in ("budget", "similarity", "self-similarity", "spectra") for part in ("--only", name)]
    commands: list[list[str]] = [
        ["plan", gpt2],
        ["analyze", gpt2, llama, "--split", "dev", *files, "--set", "data.block_length=null", *analyses],
        ["train", gpt2, *files[1::2], f"training.init_from={gpt2}", "model.decoder.halting.kind=act",
         "training.n_updates=2", "training.evaluate_every=2", "training.save_every=2",
         "training.schedule.warmup=1", "--run-dir", str(tmp_path / "halting")],
    ]  # fmt: skip
    for command in commands:
        with pytest.raises(SystemExit) as end:
            main(command)
        printed = capsys.readouterr()
        assert end.value.code in (0, None), printed.err
        if command[0] == "analyze":
            assert all(f"made {name}" in printed.out for name in analyses[1::2]), printed.out
    assert ostinato.load(tmp_path / "halting").model.stacks["decoder"].halting.threshold < 1  # type: ignore[union-attr]


def test_weights_in_several_files_and_half_precision_are_read(damaged: Path) -> None:
    whole = load_file(damaged / "model.safetensors")
    (damaged / "model.safetensors").unlink()
    names = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(whole)}
    for part in set(names.values()):
        save_file({name: x.bfloat16() for name, x in whole.items() if names[name] == part}, damaged / part)
    (damaged / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    found = read_pretrained(damaged).model.get_parameter("target_weight")
    assert torch.equal(found, whole["model.embed_tokens.weight"].bfloat16().float())


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_symbols_that_no_file_names_have_their_usual_texts(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny.save(name, folder)
    expected = import_run(str(folder), tmp_path / "named").model.special_ids
    assert expected.mask is not None
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}', encoding="utf-8")
    assert import_run(str(folder), tmp_path / "usual").model.special_ids == expected
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] != "<mask>"]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"has no mask symbol, which the model reads: name it as mask_token in"):
        import_run(str(folder), tmp_path / "none")


def test_a_mask_symbol_without_a_row_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny.save("bart", folder, vocab_size=tiny.VOCABULARY - 1)
    content = json.loads((folder / "tokenizer.json").read_text())
    ids = content["model"]["vocab"]
    last = max(ids, key=ids.__getitem__)
    ids["<mask>"], ids[last] = ids[last], ids["<mask>"]
    for one in content["added_tokens"]:
        one["id"] = ids[one["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    import_run(str(folder), tmp_path / "run")
    run = ostinato.load(tmp_path / "run")
    assert run.model.special_ids.mask is None
    assert run.tokenizers.source.encode(f"w7 {last}") == [1, 7, ids[last]]
    assert len(run.generate([f"w7 {last} w9"])) == 1


def change_config(folder: Path, **changes: Any) -> None:
    given = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**given, **changes}))


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors") | {name.replace("__", "."): x for name, x in changes.items()}
    save_file({name: x for name, x in weights.items() if x is not None}, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def mismatched(folder: Path) -> None:
    change_weights(folder, model__norm__weight=torch.ones(17))


def pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def disguised(folder: Path) -> None:
    """Put a pickle in the place of safetensors: reading it as one would do what it says."""
    (folder / "model.safetensors").write_bytes(b"cos\nsystem\n(S'touch " + bytes(folder / "ran") + b"'\ntR.")


def no_such_part(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "part-1.safetensors"}}')


def elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../x.safetensors"}}')


def no_parts(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (no_parts, "its weight_map is 3: must name the file of every tensor"),
        (lambda f: change_weights(f, model__norm__weight=torch.tensor(1.0)), "model.norm.weight [] would make []"),
        (lambda f: (f / "config.json").unlink(), "is no model of the Hugging Face library: holds no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "is damaged: no JSON"),
        (lambda f: change_config(f, architectures=["PhiForCausalLM"]), "'PhiForCausalLM', which is not read: GPT2"),
        (lambda f: change_config(f, architectures=None), "its architecture is None"),
        (lambda f: change_config(f, architectures=3), "its architecture is 3"),
        (lambda f: change_config(f, rope_parameters="x"), "rope_parameters is 'x', which is not read"),
        (lambda f: change_config(f, hidden_act=[]), "none that a LlamaForCausalLM can have: unhashable"),
        (lambda f: change_config(f, hidden_size="x", num_hidden_layers=0), "hidden_size is 'x', which is not read"),
        (lambda f: change_config(f, hidden_size=10**9), "would make [32, 16], but banks.self_attention.decoder_0.qkv"),
        (lambda f: change_config(f, hidden_size=2**31 - 2, head_dim=2**31 - 2), "tensors larger than there can be"),
        (lambda f: change_config(f, num_hidden_layers=10**9), "must be a whole number in [1, 10000]"),
        (lambda f: change_config(f, num_hidden_layers=1000), "model.layers.10.input_layernorm.weight is missing"),
        (lambda f: change_config(f, vocab_size=10**9), "model.embed_tokens.weight [50, 16] would make [50, 16], but"),
        (lambda f: change_config(f, vocab_size=[50]), "config.json: vocab_size is [50], which is not read"),
        (lambda f: change_config(f, partial_rotary_factor=0.5), "partial_rotary_factor is 0.5, which is not read"),
        (lambda f: change_config(f, tie_word_embeddings="no"), "tie_word_embeddings is 'no', which is not read"),
        (lambda f: change_config(f, eos_token_id=[]), "the id of eos is []: must be a number from 0, or null"),
        (lambda f: change_config(f, rope_parameters={"rope_type": "yarn"}), "rope_type is 'yarn', which is not read"),
        (lambda f: change_config(f, hidden_act="tanh"), "hidden_act is 'tanh', which is not read"),
        (lambda f: change_config(f, num_key_value_heads=3), "n_kv_heads is 3: must divide"),
        (lambda f: change_config(f, num_hidden_layers=3), "model.layers.2.input_layernorm.weight is missing"),
        (lambda f: change_config(f, intermediate_size=25), "mlp.down_proj.weight [16, 24] would make [16, 24]"),
        (lambda f: change_weights(f, model__norm__weight=None), "model.norm.weight is missing"),
        (lambda f: change_weights(f, model__more=torch.ones(2)), "model.more is not known"),
        (mismatched, "model.norm.weight [17] would make [17], but banks"),
        (truncate, "model.safetensors: cannot be read as weights"),
        (disguised, "model.safetensors: cannot be read as weights"),
        (no_such_part, "part-1.safetensors: cannot be read as weights"),
        (elsewhere, "names '../x.safetensors', which is no file beside it"),
        (pickle, "pytorch_model.bin: no pickled weights are ever read: save them as safetensors"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no weights (model.safetensors)"),
        (lambda f: (f / "tokenizer.json").unlink(), "holds no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text('{"model": 3}'), "cannot be read as a tokenizer"),
        (lambda f: change_config(f, vocab_size=40), "it has 50 ids, and the embedding 40 rows"),
        (lambda f: change_config(f, bos_token_id=77), "special ids [77] are not below"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_line(damaged: Path, damage: Any, line: str, tmp_path: Path) -> None:
    damage(damaged)
    run = tmp_path / "new-run"
    with pytest.raises(OstinatoError) as caught:
        import_run(str(damaged), run)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, CheckpointError | ConfigError | DataError)
    assert not run.exists()
    assert not (damaged / "ran").exists()


def test_a_hub_is_asked_for_a_name_alone_and_one_line_says_so_first(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def snapshot(name: str, **which: Any) -> str:
        asked.append(name)
        kept = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
        kept += ["model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
        others = ["consolidated.safetensors", "model.fp16.safetensors", "fp16/model.safetensors", "onnx/config.json"]
        assert sorted(filter_repo_objects(kept + others, **which)) == sorted(kept)
        assert "owner/tiny: there is no such folder here: asking https://" in capsys.readouterr().err
        return str(llama)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model").symlink_to(llama)
    for number, source in enumerate(("own/model", str(llama), "./own/model")):  # folders: no hub hears of them
        main_exits(0, "import", "hf", source, "--run-dir", str(tmp_path / f"run-{number}"))
    for source in ("nowhere", "a/b/c", "/no/where", "../no/where"):  # no names of a repository
        main_exits(2, "import", "hf", source, "--run-dir", str(tmp_path / "no"))
        assert "there is no such folder" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    main_exits(2, "import", "hf", "owner/tiny", "--run-dir", str(tmp_path / "full"))  # refused before it is asked
    assert not asked
    capsys.readouterr()
    main_exits(0, "import", "hf", "owner/tiny", "--run-dir", str(tmp_path / "run"))
    assert asked == ["owner/tiny"]
    imported = ostinato.load(tmp_path / "run")
    assert imported.model.n_parameters() > 0
    assert imported.recipe.name == "tiny"  # the folder of a hub's cache is called after a commit


def main_exits(code: int, *words: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert (end.value.code or 0) == code


def test_a_hub_that_cannot_be_asked_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    main_exits(2, "import", "hf", "owner/tiny", "--run-dir", str(tmp_path / "run"))
    first, last = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("owner/tiny: there is no such folder here: asking https://")
    assert "owner/tiny: there is no such folder, and no hub gives it: " in last
    assert not (tmp_path / "run").exists()
    wrapped = RuntimeError("Data processing error: No space left on device (os error 28)")
    for error in (OSError(errno.ENOSPC, "No space left on device"), wrapped):
        monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=error))
        main_exits(1, "import", "hf", "owner/tiny", "--run-dir", str(tmp_path / "run"))
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith(f"{tmp_path / 'cache'}: No space left on device; the disk is full")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    main_exits(2, "import", "hf", "owner/tiny", "--run-dir", str(tmp_path / "run"))
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "pip install 'ostinato[hf]'" in line


def test_nothing_is_overwritten(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds something already, and nothing is overwritten"):
        import_run(str(llama), tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        import_run(str(tmp_path / "nowhere"), tmp_path / "run")
    with pytest.raises(CheckpointError, match="it is a file: name its folder"):
        import_run(str(tmp_path / "notes.txt"), tmp_path / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("hrm-text", {"L_cycles": 3}, "num_hidden_layers is 6, which is not read: must be 8"),
        ("t5", {"num_decoder_layers": 0}, "num_decoder_layers is 0, which is not read: must be a whole number"),
        ("bert", {"is_decoder": True}, "is_decoder is True, which is not read: must be False"),
        ("t5", {"dense_act_fn": "silu"}, "dense_act_fn is 'silu', which is not read: must be 'relu'"),
        ("t5", {"is_gated_act": True}, "is_gated_act is True, which is not read: must be False"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"type": "linear", "factor": 2.0}}},
            "type is 'linear', which is not read: must be 'default'",
        ),
        ("modernbert", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, which is not read"),
    ],
)
def test_what_transformers_would_compute_otherwise_is_refused(
    name: str, changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    tiny.save(name, tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=line):
        read_pretrained(tmp_path)


def test_experts_must_have_all_their_maps(tmp_path: Path) -> None:
    tiny.save("mixtral", tmp_path)
    change_weights(tmp_path, **{"model.layers.0.block_sparse_moe.experts.1.w2.weight": None})
    with pytest.raises(CheckpointError, match=r"experts\.1\.w2\.weight is missing"):
        read_pretrained(tmp_path)


def test_windows_of_layers_are_those_of_transformers(tmp_path: Path) -> None:
    kind = transformers.Qwen3Config
    sizes = tiny.MODELS["qwen3"][1] | {"use_sliding_window": True, "sliding_window": 3, "num_hidden_layers": 3}
    for number, more in enumerate([{"max_window_layers": 1}, {"max_window_layers": 0}, {"max_window_layers": 9}]):
        folder = tmp_path / str(number)
        theirs = transformers.Qwen3ForCausalLM(kind(**sizes, **more)).eval()
        theirs.save_pretrained(folder)
        tiny.save_tokenizer(folder)
        for without in ((), ("layer_types",)):
            given = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({x: y for x, y in given.items() if x not in without}))
            with torch.no_grad():
                found = read_pretrained(folder).model(IDS).logits_BTV
            torch.testing.assert_close(found, their_logits(theirs, IDS), rtol=0, atol=1e-5)
    change_config(folder, layer_types=["full_attention"])
    with pytest.raises(CheckpointError, match="must be a list of full_attention or sliding_attention for 3 layers"):
        read_pretrained(folder)


@pytest.mark.parametrize("shape", [(23, 16), (16,), ()])
def test_tensors_that_become_one_must_fit_each_other(shape: tuple[int, ...], tmp_path: Path) -> None:
    tiny.save("mixtral", tmp_path)
    change_weights(tmp_path, **{"model.layers.0.block_sparse_moe.experts.1.w1.weight": torch.ones(shape)})
    with pytest.raises(CheckpointError, match="tensors that become one do not fit each other") as caught:
        read_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
