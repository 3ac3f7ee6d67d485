"""Exported models write what ours write: greedy, with beams, drawn, with rounds and thresholds given to `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra hf")

import runs
from runs import ids_of, padded
from transformers import AutoTokenizer, DynamicCache

from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError, OstinatoError
from ostinato.evaluation.loading import LoadedRun
from ostinato.hf.cache import CACHE
from ostinato.hf.export import wrapped
from ostinato.models import build_model

LANGUAGE_MODELS = ["language-model", "looped", "halting", "experts"]


def prompts(run: LoadedRun, n: int, length: int) -> Tensor:
    """Return begin symbols with random ids after them."""
    return torch.cat([torch.ones(n, 1, dtype=torch.long), ids_of(run, n, length)], dim=1)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_greedy_outputs_are_ours_with_padding_on_the_left_and_with_a_cache(made: Any, name: str) -> None:
    run, folder = made(name)
    model = runs.auto(run).from_pretrained(folder)
    ids, mask = padded(ids_of(run, 5, 6), "left")
    ids = torch.where(mask & (mask.cumsum(1) == 1), 1, ids)  # prompts begin with the begin symbol
    expected = run.model.generate(ids, mask, max_length=9)
    for use_cache in (True, False):
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=9, do_sample=False, top_k=None, use_cache=use_cache
        )
        assert [cut(row[6:].tolist()) for row in out] == expected


def cut(ids: list[int], eos: int = 2) -> list[int]:
    """Return ids before the end symbol."""
    return ids[: ids.index(eos)] if eos in ids else ids


@pytest.mark.sampled
@pytest.mark.parametrize("beam", [1, 5])
def test_outputs_of_sentences_are_ours_for_greedy_and_beam(made: Any, beam: int) -> None:
    run, folder = made("pairs")
    model = runs.auto(run).from_pretrained(folder)
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(2, 9, (200,), generator=generator)
    sources = [torch.randint(4, 20, (int(n),), generator=generator).tolist() for n in lengths]
    tokens = Tokens.from_lists([[*source, 2] for source in sources])
    found = model.generate(
        tokens.ids_BT, attention_mask=tokens.keep_BT, max_new_tokens=40, num_beams=beam,
        early_stopping="never" if beam > 1 else None, length_penalty=0.2 if beam > 1 else None,
    )  # fmt: skip
    penalty = {"kind": "exponent", "alpha": 0.2}
    search = {"beam": beam, "length_penalty": penalty} if beam > 1 else {}
    expected = run.model.generate(Batch.from_lists([[]] * len(sources), sources), max_length=40, **search)
    written = [cut(row[1:].tolist()) for row in found]
    # At the limit transformers lets outputs without an end compete with those that ended.
    ended = [i for i, row in enumerate(written) if beam == 1 or len(row) < 40]
    assert len(ended) >= 150
    assert [written[i] for i in ended] == [expected[i] for i in ended]
    assert len({tuple(row) for row in expected}) > 10


def test_a_text_ends_behind_a_string(made: Any) -> None:
    run, folder = made("language-model")
    model, tokenizer = runs.auto(run).from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([[1, 5, 6]])
    # Suppressed ids leave readable symbols.
    options = {"max_new_tokens": 6, "do_sample": False, "bad_words_ids": [[n] for n in range(4)]}
    whole = model.generate(ids, **options)[0, 3:].tolist()
    assert len(whole) == 6
    wanted = next(text for n in whole if (text := tokenizer.decode([n])).isprintable() and "\ufffd" not in text)
    found = model.generate(ids, stop_strings=[wanted], tokenizer=tokenizer, **options)[0, 3:].tolist()
    assert found == whole[: len(found)]
    assert wanted in tokenizer.decode(found)
    assert wanted not in tokenizer.decode(found[:-1])


def test_a_beam_search_of_a_language_model_is_ours(made: Any) -> None:
    run, folder = made("halting")
    model = runs.auto(run).from_pretrained(folder)
    ids = torch.cat([torch.ones(6, 1, dtype=torch.long), ids_of(run, 6, 3)], dim=1)
    out = model.generate(ids, max_new_tokens=8, do_sample=False, num_beams=4, length_penalty=0.0,
                         early_stopping="never", top_k=None)  # fmt: skip
    expected = run.model.generate(ids, max_length=8, beam=4, length_penalty={"kind": "none"})
    assert [cut(row[4:].tolist()) for row in out] == expected


def test_sampling_draws_from_our_distribution(made: Any) -> None:
    run, folder = made("halting")
    model = runs.auto(run).from_pretrained(folder)
    prompt, n, temperature = torch.tensor([[1, 5, 9]]), 4000, 1.5
    torch.manual_seed(3)
    drawn = model.generate(prompt.expand(n, -1), max_new_tokens=1, do_sample=True, temperature=temperature, top_k=0)
    with torch.no_grad():
        logits_V = run.model(prompt).logits_BTV[0, -1] / temperature
    logits_V[[0, 1]] = -torch.inf  # padding and the begin symbol are never written
    p_V = logits_V.softmax(-1)
    found_V = torch.bincount(drawn[:, -1], minlength=len(p_V)) / n
    assert int((p_V > 0.02).sum()) > 5
    assert bool(((found_V - p_V).abs() <= 4 * (p_V * (1 - p_V) / n).sqrt()).all())


def test_rounds_and_thresholds_are_arguments_of_generation(made: Any) -> None:
    run, folder = made("halting")
    model = runs.auto(run).from_pretrained(folder)
    ids = torch.cat([torch.ones(5, 1, dtype=torch.long), ids_of(run, 5, 3)], dim=1)
    outputs = []
    for n_steps, threshold in ((None, None), (1, None), (None, 0.3)):
        with run.model.execution(halting_threshold=threshold):
            expected = run.model.generate(ids, max_length=9, n_steps=n_steps)
        found = model.generate(
            ids, max_new_tokens=9, do_sample=False, top_k=None, n_steps=n_steps, halting_threshold=threshold
        )
        assert [cut(row[4:].tolist()) for row in found] == expected
        outputs.append(expected)
    assert outputs[0] != outputs[1]
    assert outputs[0] != outputs[2]


@pytest.mark.parametrize("name", ["looped", "pairs"])
def test_generation_returns_states_and_weights_of_every_token(made: Any, name: str) -> None:
    run, folder = made(name)
    model, ids = runs.auto(run).from_pretrained(folder), ids_of(run, 2, 4)
    how: dict[str, Any] = {"output_hidden_states": "rounds", "output_attentions": True}
    out = model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False, num_beams=1, top_k=None,
                         return_dict_in_generate=True, **how)  # fmt: skip
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    given = {"input_ids": ids, "decoder_input_ids": out.sequences} if prefix else {"input_ids": out.sequences}
    with torch.no_grad():
        whole = model(**given, **how)
    first = out.sequences.shape[1] - 4  # columns of the first step
    states, weights = (getattr(out, f"{prefix}{what}") for what in ("hidden_states", "attentions"))
    assert len(states) == len(weights) == 4
    for number in range(4):
        column = first + number - 1
        for found, expected in zip(states[number], whole[f"{prefix}hidden_states"], strict=False):
            torch.testing.assert_close(found[:, -1], expected[:, column], rtol=1e-5, atol=1e-5)
        for found, expected in zip(weights[number], whole[f"{prefix}attentions"], strict=False):
            torch.testing.assert_close(found[:, :, -1], expected[:, :, column, : column + 1], rtol=0, atol=1e-5)
        if prefix:
            assert out.cross_attentions[number][0].shape[-1] == 4
            torch.testing.assert_close(
                out.cross_attentions[number][0][:, :, -1], whole.cross_attentions[0][:, :, column], rtol=0, atol=1e-5
            )
    assert len(states[0]) == len(whole[f"{prefix}hidden_states"]) > 1


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cached_target_goes_on_by_either_name(made: Any, name: str) -> None:
    run, folder = made("pairs")
    model, ids = runs.auto(run).from_pretrained(folder), ids_of(run)
    with torch.no_grad():
        first = model(ids, decoder_input_ids=ids[:, :4], use_cache=True)
        states = (first.encoder_last_hidden_state,)
        second = model(encoder_outputs=states, decoder_input_ids=ids[:, 4:], **{name: first[CACHE]})
        whole = model(ids, decoder_input_ids=ids)
    torch.testing.assert_close(second.logits, whole.logits[:, 4:], rtol=0, atol=1e-6)
    assert second[CACHE] is first[CACHE]
    assert CACHE not in whole


@pytest.mark.parametrize(
    ("name", "more"),
    [("halting", []), ("pairs", []), ("looped", ["model.decoder.ffn={kind: separable_conv, d_ff: 12}"])],
)
def test_rows_of_a_cache_are_kept_and_repeated(name: str, more: list[str], tmp_path: Path) -> None:
    run = runs.make_run(name, tmp_path, *more)
    model, ids = wrapped(run), ids_of(run, 4, 6)
    is_pair = name == "pairs"

    def call(rows: Tensor, columns: slice, **given: Any) -> Any:
        own = {"decoder_input_ids": ids[rows][:, columns]} if is_pair else {"input_ids": ids[rows][:, columns]}
        with torch.no_grad():
            return model(**({"input_ids": ids[rows]} if is_pair else {}), **own, **given)

    cache = call(torch.arange(4), slice(0, 4), use_cache=True)[CACHE]
    cache.batch_select_indices(torch.tensor([2, 1]))
    cache.batch_repeat_interleave(3)
    cache.batch_repeat_interleave(2)
    rows = torch.tensor([2, 1]).repeat_interleave(6)
    found = call(rows, slice(4, 6), past_key_values=cache).logits
    torch.testing.assert_close(found, call(rows, slice(0, 6)).logits[:, 4:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_generation_goes_on_from_a_cache(made: Any, name: str) -> None:
    run, folder = made(name)
    model, ids = runs.auto(run).from_pretrained(folder), ids_of(run, 2, 4)
    how: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "top_k": None}
    first = model.generate(ids, return_dict_in_generate=True, **how)
    assert first[CACHE].get_seq_length() == 7
    longer = torch.cat([first.sequences, ids_of(run, 2, 3)], dim=1)
    found = model.generate(longer, **{CACHE: first[CACHE]}, **how)
    assert first[CACHE].get_seq_length() == 14  # each column once
    assert torch.equal(found, model.generate(longer, **how))


@pytest.mark.parametrize("name", ["halting", "pairs"])
def test_a_cache_goes_on_as_it_was_made_or_is_refused(made: Any, name: str) -> None:
    run, folder = made(name)
    model, ids = runs.auto(run).from_pretrained(folder), ids_of(run)
    how = {"n_steps": 2, "halting_threshold": 0.5}

    def call(columns: slice, **more: Any) -> Any:
        given = (
            {"input_ids": ids, "decoder_input_ids": ids[:, columns]}
            if name == "pairs"
            else {"input_ids": ids[:, columns]}
        )
        with torch.no_grad():
            return model(**given, use_cache=True, **more)

    cache = call(slice(0, 4), **how)[CACHE]
    for asked, line in (
        ({"n_steps": 3}, "n_steps is 3: the cache was made with 2"),
        ({"halting_threshold": 0.9}, "halting_threshold is 0.9: the cache was made with 0.5"),
    ):
        with pytest.raises(ConfigError, match=line) as caught:
            call(slice(4, 5), past_key_values=cache, **asked)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="n_steps is 3: the cache was made with the own ones of the model"):
        call(slice(4, 5), past_key_values=call(slice(0, 4))[CACHE], n_steps=3)
    whole = call(slice(0, 6), **how).logits
    for column, asked in ((4, how), (5, {})):
        found = call(slice(column, column + 1), past_key_values=cache, **asked).logits
        torch.testing.assert_close(found, whole[:, column : column + 1], rtol=0, atol=1e-5)


def test_what_would_take_columns_back_is_refused(made: Any) -> None:
    run, folder = made("looped")
    model = runs.auto(run).from_pretrained(folder)
    ids = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 5, 6]])  # each token foretells the next
    with pytest.raises((OstinatoError, RuntimeError, ValueError), match=r"cropped|requires a cache"):
        model.generate(ids, max_new_tokens=4, do_sample=False, top_k=None, prompt_lookup_num_tokens=3)
    with torch.no_grad():
        cache = model(ids, use_cache=True)[CACHE]
    assert not cache.is_croppable
    with pytest.raises(OstinatoError, match="a cache of Ostinato cannot be cropped"):
        cache.crop(-1)


GIVEN: list[dict[str, Any]] = [{}, {"n_steps": 1}, {"halting_threshold": 0.3}]


def ours(
    run: LoadedRun,
    batch: Any,
    *keep: Any,
    n_steps: int | None = None,
    halting_threshold: float | None = None,
    **how: Any,
) -> list[list[int]]:
    """Return what our search writes with rounds or a threshold."""
    with run.model.execution(halting_threshold=halting_threshold):
        return run.model.generate(batch, *keep, n_steps=n_steps, **how)


@pytest.mark.sampled
@pytest.mark.parametrize("beam", [1, 5])
def test_rounds_and_thresholds_are_arguments_of_generation_for_pairs_and_beams(made: Any, beam: int) -> None:
    run, folder = made("pairs")
    model, sources = runs.auto(run).from_pretrained(folder), ids_of(run, 24, 4)
    batch = Batch.from_lists([[]] * len(sources), sources.tolist())
    assert batch.source is not None
    given, search = batch.source.ids_BT, {"beam": beam, "length_penalty": {"kind": "none"}} if beam > 1 else {}
    more = {"early_stopping": "never", "length_penalty": 0.0} if beam > 1 else {}
    outputs = []
    for asked in GIVEN:
        expected = ours(run, batch, **asked, max_length=30, **search)
        found = model.generate(given, max_new_tokens=30, num_beams=beam, **more, **asked)
        written = [cut(row[1:].tolist()) for row in found]
        ended = [i for i, row in enumerate(written) if beam == 1 or len(row) < 30]
        assert len(ended) >= 18
        assert [written[i] for i in ended] == [expected[i] for i in ended]
        outputs.append(expected)
    assert outputs[0] != outputs[1]
    assert outputs[0] != outputs[2]


def test_rounds_and_thresholds_are_arguments_of_a_beam_search_of_a_language_model(made: Any) -> None:
    run, folder = made("halting")
    model, ids = runs.auto(run).from_pretrained(folder), prompts(run, 8, 3)
    outputs = []
    for asked in GIVEN:
        out = model.generate(ids, max_new_tokens=8, do_sample=False, num_beams=5, length_penalty=0.0,
                             early_stopping="never", top_k=None, **asked)  # fmt: skip
        expected = ours(run, ids, **asked, max_length=8, beam=5, length_penalty={"kind": "none"})
        assert [cut(row[4:].tolist()) for row in out] == expected
        outputs.append(expected)
    assert outputs[0] != outputs[1]
    assert outputs[0] != outputs[2]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"n_steps": 0}, "n_steps is 0: must be at least 1"),
    ({"n_steps": "two"}, "n_steps is 'two': must be a whole number of rounds"),
    ({"n_steps": 2.5}, "n_steps is 2.5: must be a whole number of rounds"),
    ({"n_steps": True}, "n_steps is True: must be a whole number of rounds"),
    ({"halting_threshold": 2.0}, r"halting_threshold is 2.0: must lie in \[0, 1\]"),
    ({"halting_threshold": "high"}, r"halting_threshold is 'high': must be a number in \[0, 1\]"),
]


@pytest.mark.parametrize("name", ["pairs", "halting"])
def test_rounds_and_thresholds_that_cannot_be_are_one_line(made: Any, name: str) -> None:
    run, folder = made(name)
    model, ids = runs.auto(run).from_pretrained(folder), prompts(run, 2, 3)
    for asked, line in WRONG:
        for beam in (1, 5):
            with pytest.raises(ConfigError, match=line) as caught:
                model.generate(ids, max_new_tokens=3, do_sample=False, num_beams=beam, **asked)
            assert "\n" not in str(caught.value)


def test_rounds_and_thresholds_that_a_model_has_not_are_one_line(made: Any) -> None:
    for name, asked, line in (
        ("language-model", {"n_steps": 3}, "n_steps is 3: the decoder has 2 rounds with different parameter sets"),
        ("looped", {"halting_threshold": 0.5}, "no token of this model can halt by a threshold"),
    ):
        run, folder = made(name)
        with pytest.raises(ConfigError, match=line) as caught:
            runs.auto(run).from_pretrained(folder).generate(prompts(run, 2, 3), max_new_tokens=3, **asked)
        assert "\n" not in str(caught.value)


def teach_to_copy(run: LoadedRun, n_updates: int) -> None:
    """Train a run from new weights to write its source, or its prompt, once more; its outputs then end."""
    model, draws = run.model, torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    model.load_state_dict(build_model(model.config).state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(n_updates):
        loss = model.loss(lesson(run, random_sources(64, draws)), halting=run.recipe.training.halting)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def random_sources(n: int, draws: torch.Generator) -> list[list[int]]:
    """Return sequences of two to six tokens."""
    lengths = torch.randint(2, 7, (n,), generator=draws).tolist()
    return [torch.randint(5, 15, (length,), generator=draws).tolist() for length in lengths]


def lesson(run: LoadedRun, sources: list[list[int]]) -> Batch:
    """Return sources with themselves as targets; of a language model one sequence with token 4 between them."""
    if run.model.config.has_two_sides:
        return Batch.from_lists(sources, sources)
    return Batch.from_lists([[*source, 4, *source] for source in sources])


@pytest.fixture(scope="module", params=["pairs", "halting"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedRun, Any]:
    """Return a run that has learned to end its outputs, and the model of transformers that it was exported as."""
    folder = tmp_path_factory.mktemp("trained")
    run = runs.make_run(request.param, folder / "run", "model.d_model=48", "data.tokenizer={kind: words}")
    teach_to_copy(run, 500)
    wrapped(run).save_pretrained(folder / "out")
    return run, runs.auto(run).from_pretrained(folder / "out")


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, {"n_steps": 3}, {"halting_threshold": 0.6}], ids=str)
@pytest.mark.parametrize("beam", [1, 5])
def test_200_outputs_of_a_trained_model_end_and_are_ours(
    trained: tuple[LoadedRun, Any], beam: int, asked: dict[str, Any]
) -> None:
    run, model = trained
    sources = random_sources(200, torch.Generator().manual_seed(9))
    if run.model.config.has_two_sides:
        batch: Any = Batch.from_lists([[]] * len(sources), sources)
        given, n_before, keep = batch.source, 1, ()
    else:
        given, n_before = left_padded([[1, *source, 4] for source in sources]), None
        batch, keep = given.ids_BT, (given.keep_BT,)
    search = {"beam": beam, "length_penalty": {"kind": "exponent", "alpha": 1.0}} if beam > 1 else {}
    more = {"early_stopping": "never", "length_penalty": 1.0} if beam > 1 else {}
    found = model.generate(given.ids_BT, attention_mask=given.keep_BT, max_new_tokens=24, do_sample=False, top_k=None,
                           num_beams=beam, **more, **asked)  # fmt: skip
    n_before = n_before or given.ids_BT.shape[1]
    written = [row[n_before:].tolist() for row in found]
    expected = ours(run, batch, *keep, **asked, max_length=24, **search)
    # Outputs that the limit cuts off, of rounds that were never trained, are ranked otherwise.
    ended = [i for i, row in enumerate(written) if 2 in row]
    assert len(ended) == 200 or (asked and len(ended) >= 100)
    assert [cut(written[i]) for i in ended] == [expected[i] for i in ended]
    n_right = sum(one == source for one, source in zip(expected, sources, strict=True))
    assert asked or n_right >= 100


def left_padded(rows: list[list[int]]) -> Tokens:
    """Return rows with padding on the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    return Tokens(ids, torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows]))


def test_a_cache_of_another_kind_is_refused(made: Any) -> None:
    run, _ = made("language-model")
    with pytest.raises(ConfigError, match="past_key_values is 'DynamicCache': is no cache of this model"):
        wrapped(run)(torch.tensor([[1, 5]]), past_key_values=DynamicCache())


@pytest.mark.parametrize("name", ["language-model", "pairs", "masked"])
def test_what_a_configuration_asks_for_is_what_calls_show(made: Any, name: str) -> None:
    model = wrapped(made(name)[0])
    given = {"input_ids": torch.tensor([[1, 5, 2]])}
    given |= {"decoder_input_ids": torch.tensor([[1, 6]])} if name == "pairs" else {}
    model.config.output_hidden_states = True
    found = model(**given)
    states = found.decoder_hidden_states if name == "pairs" else found.hidden_states
    assert len(states) > 1
    shown = model(**given, output_hidden_states=False)
    assert (shown.decoder_hidden_states if name == "pairs" else shown.hidden_states) is None
    if name != "masked":
        assert CACHE not in model(**given)  # as Trainer's evaluations call it
        model.config.use_cache = True
        assert model(**given)[CACHE].get_seq_length() == model(**given).logits.shape[1]
        assert CACHE not in model(**given, use_cache=False)
    model.config.return_dict = False
    assert isinstance(model(**given), tuple)
