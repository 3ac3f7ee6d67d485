"""What rounds that share weights have of their own: how it starts, how far it reaches, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.config.load import check_settings
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError
from ostinato.models import Model, build_model
from ostinato.nn.execution import Execution

IDS = torch.randint(3, 20, (2, 7), generator=torch.Generator().manual_seed(0))
OWN: dict[str, dict[str, Any]] = {
    "norms": {"norms": "by_round"},
    "vectors": {"vectors": True},
    "delta": {"delta_rank": 3},
    "modulation": {"modulation": {"kind": "by_round"}},
}
HEAD_EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": 3, "top_k": 2, "n_heads": 2, "d_head": 6}
FFN_EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": 3, "top_k": 2, "d_ff": 24, "activation": "swiglu"}
EXPERTS: dict[str, Any] = {"self_attention": HEAD_EXPERTS, "ffn": FFN_EXPERTS}
FFN_MAPS = {"up": "experts.up_EDF", "down": "experts.down_EFD"}
HEADS = {"query": "query_EDI", "kv": "kv.weight", "out": "out_EID"}
HEIGHTS = {"up": 24, "down": 16, "query": 12, "kv": 12, "out": 16}
CROSS_PARTS = {"query": (16, 12), "out": (12, 16)}
BY_TIME: dict[str, Any] = {"modulation": {"kind": "by_time"}}


def settings(repeats: int | None = 3, *, stack: dict[str, Any] | None = None, **segment: Any) -> dict[str, Any]:
    decoder = {
        "n_steps": 3,
        "segments": [{"n_steps": 2, "repeats": 3, **segment} | {"repeats": repeats}, {"n_steps": 1}],
        "self_attention": {"n_heads": 2},
        "ffn": {"d_ff": 24, "activation": "swiglu"},
        "norm": {"placement": "pre"},
        **(stack or {}),
    }
    return {"kind": "language_model", "vocab_size": 20, "d_model": 16, "dropout": 0.0, "decoder": decoder}


def model_of(repeats: int = 3, **segment: Any) -> Model:
    torch.manual_seed(1)
    return build_model(LanguageModelConfig.model_validate(settings(repeats, **segment))).double().eval()


def randomised(model: Model) -> Model:
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


def logits(model: Model, **call: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS, **call).logits_BTV  # type: ignore[no-any-return]


@pytest.mark.parametrize(("own", "stack"), [*((own, {}) for own in OWN), ("delta", EXPERTS)], ids=str)
def test_a_new_model_is_the_one_that_shares_everything(own: str, stack: dict[str, Any]) -> None:
    shared, model = model_of(stack=stack), model_of(stack=stack, **OWN[own])
    alike = {name: x for name, x in shared.state_dict().items() if name in model.state_dict()}
    model.load_state_dict(alike, strict=False)
    assert torch.equal(logits(model), logits(shared))
    assert not torch.equal(logits(randomised(model)), logits(shared))


@pytest.mark.parametrize("own", OWN)
def test_rounds_are_the_first_ones_or_again_the_last(own: str) -> None:
    model = randomised(model_of(**OWN[own]))
    for n_rounds in (1, 2, 5):
        other, found = model_of(n_rounds, **OWN[own]), dict(model.named_parameters())
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                if name.endswith("table_RD"):
                    parameter.copy_(found[name][[min(r, 2) for r in range(n_rounds)]])
                    continue
                for r in range(2, n_rounds):
                    name = name.replace(f"_round_{r}", "_round_2")
                parameter.copy_(found[name])
        assert torch.equal(logits(model, n_steps=n_rounds), logits(other))


def test_equal_steps_are_what_is_taken_where_no_path_is_given() -> None:
    model = randomised(model_of(**BY_TIME))
    equal, other = ({"decoder": path} for path in ((1 / 3, 1 / 3, 1 / 3), (0.5, 0.25, 0.25)))
    assert torch.equal(logits(model), logits(model, execution=Execution(paths=equal)))
    assert not torch.allclose(logits(model), logits(model, execution=Execution(paths=other)))
    two = {"decoder": (0.5, 0.5)}
    assert torch.equal(logits(model, n_steps=2), logits(model, execution=Execution(paths=two)))
    assert Execution(paths={"decoder": [0.5, 0.5]}) == Execution(paths=two), "lists are taken too"  # type: ignore[dict-item]
    with model.execution(paths=two):
        assert model.n_rounds() == {"decoder": 2}
        assert torch.equal(logits(model), logits(model, n_steps=2))
        with pytest.raises(ConfigError, match="n_steps is 3: a path of 2 steps was given for the decoder"):
            logits(model, n_steps=3)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"decoder": (0.5, 0.4)}, "must be positive numbers whose sum is 1"),
        ({"decoder": (1.5, -0.5)}, "must be positive numbers whose sum is 1"),
        ({"decoder": ()}, "must be positive numbers whose sum is 1"),
        ({"decoder": (math.nan,)}, "must be positive numbers whose sum is 1"),
        ({"encoder": (1.0,)}, "paths is 'encoder': this model has no such stack; its stacks are: decoder"),
    ],
)
def test_paths_that_cannot_be_taken_are_refused(paths: dict[str, tuple[float, ...]], message: str) -> None:
    model = model_of(**BY_TIME)
    with pytest.raises(ConfigError, match=message), model.execution(paths=paths):
        pass


def test_a_path_needs_something_that_reads_it_and_its_own_number_of_rounds() -> None:
    with pytest.raises(ConfigError, match="needs modulation by time"), model_of().execution(paths={"decoder": (1.0,)}):
        pass
    with pytest.raises(ConfigError, match=r"rounds.decoder is 3: paths.decoder has 2 rounds"):
        Execution(paths={"decoder": (0.5, 0.5)}, rounds={"decoder": 3})


@pytest.mark.parametrize("own", [*OWN.values(), BY_TIME], ids=str)
def test_a_segment_that_runs_once_has_nothing_by_round(own: dict[str, Any]) -> None:
    given = settings()
    given["decoder"]["segments"][1] |= own
    with pytest.raises(ConfigError, match=r"has no effect without segments.1.repeats: remove it"):
        check_settings(given["decoder"], type(LanguageModelConfig().decoder))


@pytest.mark.parametrize(
    "stack",
    [{"ffn": {"kind": "separable_conv"}, "self_attention": {"kind": "head_experts"}}, {"sparse_layer": {"after": 1}}],
    ids=str,
)
def test_where_no_map_would_have_a_delta_it_is_refused(stack: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"segments.0.delta_rank is 3: is added to the maps of attention and feed-f"):
        LanguageModelConfig.model_validate(settings(stack=stack, delta_rank=3))


@pytest.mark.parametrize("backend", ["auto", "loop", "dense"])
def test_all_experts_of_a_sub_layer_have_the_same_delta(backend: Any) -> None:
    model = randomised(model_of(1, stack=EXPERTS, delta_rank=3))
    with model.execution(expert_backend=backend, compaction="never"):
        found = logits(model)
    with torch.no_grad():
        for i in range(2):
            for kind, maps in (("ffn", FFN_MAPS), ("self_attention", HEADS)):
                delta = model.banks.delta[f"{kind}_decoder_step_{i}_round_0"]
                assert set(delta) == set(maps)
                for name, path in maps.items():
                    blocks = zip(delta[name].a.weight.split(3), delta[name].b_FR.split(HEIGHTS[name]), strict=True)
                    product_FD = torch.cat([b_FR @ a_RD for a_RD, b_FR in blocks])
                    weight = model.get_parameter(f"banks.{kind}.decoder_{i}.{path}")
                    weight += product_FD.T if weight.ndim == 3 else product_FD
                    delta[name].b_FR.zero_()
    torch.testing.assert_close(logits(model), found, rtol=0, atol=1e-10)


def test_cross_attention_has_deltas_of_what_reads_the_memory() -> None:
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 24}}
    loop = stack | {"segments": [{"repeats": 2, "delta_rank": 3}]}
    for cross, parts in (({"n_kv_heads": 1}, {"qkv": (16, 16), "out": (16, 16)}), (HEAD_EXPERTS, CROSS_PARTS)):
        decoder = loop | {"cross_attention": {"n_heads": 2} | cross}
        sizes = {"d_model": 16, "source_vocab_size": 20, "target_vocab_size": 20}
        model = build_model(Seq2SeqConfig.model_validate(sizes | {"encoder": stack, "decoder": decoder}))
        found = model.banks.delta["cross_attention_decoder_step_0_round_1"]
        assert {name: (one.a.weight.shape[1], len(one.b_FR)) for name, one in found.items()} == parts
        assert all(one.a.weight.shape[0] == 3 for one in found.values())


def test_a_final_norm_may_have_an_eps_of_its_own() -> None:
    norm = {"kind": "rms", "placement": "pre", "eps": 1e-6, "final_eps": 0.5}
    model = build_model(LanguageModelConfig.model_validate(settings(stack={"norm": norm})))
    found = {name: module.eps for name, module in model.banks.norm.items()}
    assert {name: eps for name, eps in found.items() if eps != 1e-6} == {"final_decoder": 0.5}
    idle = settings(stack={"norm": {"placement": "post", "final_eps": 0.5}})
    with pytest.raises(ConfigError, match=r"norm.final_eps is 0.5: has no effect: there is no final norm"):
        check_settings(idle["decoder"], type(LanguageModelConfig().decoder))


def test_a_final_norm_may_have_weights_where_the_others_have_none() -> None:
    norm = {"kind": "rms", "placement": "pre", "weight": False, "final_weight": True}
    model = build_model(LanguageModelConfig.model_validate(settings(stack={"norm": norm})))
    assert [name for name, _ in model.banks.norm.named_parameters()] == ["final_decoder.weight"]
    for idle in ({"kind": "rms", "placement": "pre"}, {"weight": False, "placement": "post"}):
        given = settings(stack={"norm": {**idle, "final_weight": True}})
        with pytest.raises(ConfigError, match=r"norm.final_weight is True: has no effect"):
            check_settings(given["decoder"], type(LanguageModelConfig().decoder))
