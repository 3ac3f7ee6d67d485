from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from tiny_models import DATA, WORDS, trained_language_model, trained_seq2seq, word_tokenizers

from ostinato.config.decoding import DecodingConfig
from ostinato.config.files import say_once
from ostinato.config.model import LanguageModelConfig
from ostinato.config.stack import StackConfig
from ostinato.data.collate import Row, collate
from ostinato.data.inputs import Input
from ostinato.data.tokenizer import BOS_ID
from ostinato.data.tokenizers import Tokenizers
from ostinato.decoding import inference, search
from ostinato.decoding.generate import Generation, generate, generate_stream
from ostinato.decoding.search import left_padded
from ostinato.errors import DataError
from ostinato.models import LanguageModel, Seq2Seq

GREEDY = DecodingConfig(max_length=8)
SAMPLE = DecodingConfig(strategy="sample", max_length=8, seed=3)
BEAM = DecodingConfig(strategy="beam", beam=3, max_length=8)


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return word_tokenizers()


@pytest.fixture(scope="module")
def model(tokenizers: Tokenizers) -> Seq2Seq:
    return trained_seq2seq(tokenizers.target.vocab_size)


def random_texts(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS.split(), k=rng.randint(0, 8))) for _ in range(n)]


@pytest.mark.sampled
@pytest.mark.parametrize("config", [GREEDY, BEAM])
def test_outputs_come_in_the_order_given_and_equal_those_of_single_texts(
    model: Seq2Seq, tokenizers: Tokenizers, config: DecodingConfig
) -> None:
    texts = random_texts(16)
    together = generate(model, texts, tokenizers, DATA, config)
    assert len({g.text for g in together}) > 5
    for text, generation in zip(texts, together, strict=True):
        [alone] = generate(model, [text], tokenizers, DATA, config)
        assert (generation.text, generation.n_tokens) == (alone.text, alone.n_tokens)
        assert generation.score == pytest.approx(alone.score, rel=1e-5)
        assert generation.n_tokens == len(generation.text.split()) + generation.finished


@pytest.mark.parametrize("config", [GREEDY, SAMPLE])
def test_the_stream_gives_the_same_whatever_its_window(
    model: Seq2Seq, tokenizers: Tokenizers, config: DecodingConfig
) -> None:
    texts = random_texts(12)
    whole = [g.text for g in generate(model, texts, tokenizers, DATA, config)]
    for window in (1, 4, 100):
        stream = generate_stream(model, iter(texts), tokenizers, DATA, config, window=window)
        assert [g.text for g in stream if isinstance(g, Generation)] == whole


def test_the_stream_reads_no_more_than_its_window(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    read = []

    def texts() -> Iterator[str]:
        for text in random_texts(20):
            read.append(text)
            yield text

    stream = generate_stream(model, texts(), tokenizers, DATA, GREEDY, window=4)
    next(stream)
    assert len(read) == 4
    assert torch.is_grad_enabled(), "gradients are on again in the code that takes the value"


def test_a_text_that_cannot_be_encoded_is_an_error_of_its_own_in_a_stream(
    model: Seq2Seq, tokenizers: Tokenizers
) -> None:
    data = DATA.model_copy(update={"max_source_length": 4})
    texts = ["do re", "do x", "do re mi fa", "mi", "do re mi"]
    found = list(generate_stream(model, texts, tokenizers, data, GREEDY))
    good = generate(model, ["do re", "mi", "do re mi"], tokenizers, data, GREEDY)
    assert [g.text for g in found if isinstance(g, Generation)] == [g.text for g in good]
    assert isinstance(found[1], DataError)
    assert "input line 2: 'x' is not among" in str(found[1])
    assert "input line 3: 5 tokens, but data.max_source_length is 4" in str(found[2])


def test_a_text_that_cannot_be_encoded_stops_a_list_before_anything_runs(
    model: Seq2Seq, tokenizers: Tokenizers
) -> None:
    with pytest.raises(DataError, match="input line 3: 'x'"):
        generate(model, ["do", "re", "mi x"], tokenizers, DATA, GREEDY)


def test_long_and_unknown_texts_are_cut_and_replaced_where_the_data_say_so(
    model: Seq2Seq, tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    data = DATA.model_copy(update={"max_source_length": 3, "over_length": "truncate", "unknown": "replace"})
    say_once.cache_clear()
    cut, short, odd = generate(model, ["do re mi fa", "do re", "do x"], tokenizers, data, GREEDY)
    assert cut == short
    assert odd != short
    assert caplog.messages == ["longer inputs are cut to data.max_source_length = 3 tokens (data.over_length=truncate)"]
    data = data.model_copy(update={"max_target_length": 3})
    with pytest.raises(
        DataError, match=r"line 1: the beginning of its output has 4 tokens, and is not cut: data\.max_t"
    ):
        generate(model, [Input("do", "do re mi")], tokenizers, data, GREEDY)


def test_a_language_model_continues_prompts_of_any_length(tokenizers: Tokenizers) -> None:
    model = trained_language_model(tokenizers.target.vocab_size)
    texts = random_texts(12)
    together = generate(model, texts, tokenizers, DATA, GREEDY, as_prompts=True)
    assert len({g.text for g in together}) > 3
    for text, generation in zip(texts, together, strict=True):
        assert generation.text == generate(model, [text], tokenizers, DATA, GREEDY, as_prompts=True)[0].text
    data = DATA.model_copy(update={"max_target_length": 2})
    with pytest.raises(DataError, match=r"data\.max_target_length is 2"):
        generate(model, ["do re"], tokenizers, data, GREEDY, as_prompts=True)
    with pytest.raises(DataError, match="is itself the beginning of its output"):
        generate(model, [Input("do", "re")], tokenizers, DATA, GREEDY, as_prompts=True)


def test_a_prompt_is_never_cut(tokenizers: Tokenizers) -> None:
    model = trained_language_model(tokenizers.target.vocab_size)
    for over_length in ("error", "truncate", "drop"):
        data = DATA.model_copy(update={"max_target_length": 3, "over_length": over_length})
        with pytest.raises(DataError, match=r"line 1: 4 tokens, but data\.max_target_length is 3: .*_length=4$"):
            generate(model, ["do re mi"], tokenizers, data, GREEDY, as_prompts=True)
        whole = generate(model, ["do re mi"], tokenizers, DATA, GREEDY, as_prompts=True)
        enough = data.model_copy(update={"max_target_length": 4})
        assert generate(model, ["do re mi"], tokenizers, enough, GREEDY, as_prompts=True) == whole
    decoder = StackConfig.model_validate(
        {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}, "positions": {"kind": "learned", "max_length": 3}}
    )
    short = LanguageModel(LanguageModelConfig(d_model=8, vocab_size=tokenizers.target.vocab_size, decoder=decoder))
    assert len(generate(short, ["do re"], tokenizers, DATA, GREEDY, as_prompts=True)) == 1
    with pytest.raises(DataError, match="line 1: 4 tokens, but the model has 3 positions: shorten the prompt"):
        generate(short, ["do re mi"], tokenizers, DATA, GREEDY, as_prompts=True)


def test_a_prompt_and_what_follows_it_are_the_text(tokenizers: Tokenizers) -> None:
    model = trained_language_model(tokenizers.target.vocab_size)
    config = BEAM.model_copy(update={"n_best": 3, "token_scores": True})
    prompts = ["do re", "", "mi"]
    for prompt, best in zip(prompts, generate(model, prompts, tokenizers, DATA, config, as_prompts=True), strict=True):
        assert len(best.others) == 2
        for one in (best, *best.others):
            ids = tokenizers.target.encode(prompt + one.text)
            assert len(ids) == len(prompt.split()) + one.n_tokens - one.finished
            assert tokenizers.target.decode(ids) == prompt + one.text
            assert one.tokens is not None
            assert "".join(one.tokens) == one.text + "<eos>" * one.finished


@pytest.mark.parametrize("config", [GREEDY, SAMPLE, BEAM])
def test_outputs_go_on_from_the_beginnings_that_their_inputs_come_with(
    model: Seq2Seq, tokenizers: Tokenizers, config: DecodingConfig
) -> None:
    begun = ["", "la si ut", "do", "", "fa fa", "ut"] * 3
    inputs = [Input(text, prefix) for text, prefix in zip(random_texts(18), begun, strict=True)]
    together = generate(model, inputs, tokenizers, DATA, config)
    for index, (given, generation) in enumerate(zip(inputs, together, strict=True)):
        assert generation.text.startswith(given.prefix)
        words = generation.text.split()[len(given.prefix.split()) :]
        assert generation.n_tokens == len(words) + generation.finished
        prefix = left_padded([[BOS_ID, *tokenizers.target.encode(given.prefix)]], 0, torch.device("cpu"))
        row = Row(tokenizers.source.encode(given.text), [], {}, index)
        (alone,) = search(model, collate([row]), config, prefix)
        assert tokenizers.target.encode(" ".join(words)) == alone.ids


def test_an_input_that_comes_with_an_error_keeps_its_place(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    broken = Input("", where="a.txt, line 2", error=DataError("a.txt, line 2: not UTF-8"))
    unknown = Input("do", "x", where="a.txt, line 3")
    found = list(generate_stream(model, ["do", broken, unknown, "re"], tokenizers, DATA, GREEDY, window=3))
    assert [isinstance(one, Generation) for one in found] == [True, False, False, True]
    assert found[1] is broken.error
    assert str(found[2]).startswith("a.txt, line 3: 'x' is not among")


def test_progress_is_told_of_every_answer_batch_by_batch(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    texts, told = [*random_texts(11), "x"], []
    answered = list(generate_stream(model, texts, tokenizers, DATA, GREEDY, window=8, on_progress=told.append))
    assert sum(told) == len(answered) == 12
    assert len(told) > 2


def test_other_outputs_and_tokens_come_where_they_are_asked_for(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    config = BEAM.model_copy(update={"max_length": 20})
    wanted = config.model_copy(update={"n_best": 3, "token_scores": True})
    plain = generate(model, random_texts(6), tokenizers, DATA, config)
    for before, best in zip(plain, generate(model, random_texts(6), tokenizers, DATA, wanted), strict=True):
        assert (before.tokens, before.token_log_probs, before.others) == (None, None, ())
        assert best.text == before.text
        assert best.score == pytest.approx(before.score, rel=1e-5)
        assert [one.others for one in best.others] == [(), ()]
        for one in (best, *best.others):
            assert one.tokens == [*one.text.split(), *["<eos>"] * one.finished]
            assert sum(one.token_log_probs or []) == pytest.approx(one.log_prob, abs=1e-5)


def test_no_texts_give_no_outputs(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    assert generate(model, [], tokenizers, DATA, GREEDY) == []
    assert list(generate_stream(model, [], tokenizers, DATA, GREEDY)) == []


def test_inference_restores_the_mode_of_every_module_even_after_an_error(model: Seq2Seq) -> None:
    model.train()
    model.banks.eval()
    modes = [module.training for module in model.modules()]

    def run() -> None:
        with inference(model):
            assert not any(module.training for module in model.modules())
            assert not torch.is_grad_enabled()
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        run()
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    model.eval()
