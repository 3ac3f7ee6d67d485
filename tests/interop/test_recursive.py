"""A dense model as one of repeated steps: with full rank the same, with rank 0 its shared weights, nearer with more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError
from ostinato.interop import to_recursive
from ostinato.models import Model, build_model
from pretended import numbers_of, pretend_model, pretended_device

N_STEPS, ROUNDS, WIDTH = 6, 3, 24
IDS = torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(1))


def language_model(seed: int, **decoder: Any) -> Model:
    """Return a model in float64 with random weights."""
    stack = {
        "self_attention": {"n_heads": 4, "n_kv_heads": 2, "bias": False, "output_gate": True},
        "ffn": {"d_ff": 40, "activation": "swiglu", "bias": False},
        "norm": {"kind": "rms", "placement": "pre"},
        "positions": {"kind": "none"},
        "relative": {"kind": "rotary"},
        **decoder,
    }
    settings = {"vocab_size": 30, "d_model": WIDTH, "dropout": 0.0, "decoder": stack}
    model = build_model(LanguageModelConfig.model_validate(settings)).double().eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3)
    return model


def recursive(rank: int, **segment: Any) -> Model:
    segments = [{"n_steps": N_STEPS // ROUNDS, "repeats": ROUNDS, "delta_rank": rank, "norms": "by_round", **segment}]
    return language_model(2, n_steps=N_STEPS // ROUNDS, segments=segments)


def logits(model: Model) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits_BTV  # type: ignore[no-any-return]


def test_a_stack_that_the_donor_lacks_is_refused() -> None:
    stack = {"self_attention": {"n_heads": 4}, "ffn": {"d_ff": 40}, "n_steps": N_STEPS}
    sizes = {"source_vocab_size": 30, "target_vocab_size": 30, "d_model": WIDTH}
    model = build_model(Seq2SeqConfig.model_validate(sizes | {"encoder": stack, "decoder": stack}))
    with pytest.raises(ConfigError, match=r"a model with the stack 'encoder'.* the donor's stacks are decoder"):
        to_recursive(language_model(1, n_steps=N_STEPS), model)


@pytest.mark.parametrize("shared", ["average", "first"])
def test_full_rank_is_the_donor(shared: Any) -> None:
    donor, model = language_model(1, n_steps=N_STEPS), recursive(WIDTH)
    to_recursive(donor, model, shared)
    torch.testing.assert_close(logits(model), logits(donor), rtol=0, atol=1e-10)
    torch.testing.assert_close(model.double()(IDS, n_steps=2).logits_BTV, recursive_of(donor, 2), rtol=0, atol=1e-10)


def recursive_of(donor: Model, rounds: int) -> Tensor:
    """Return what the donor's first steps give."""
    shorter = language_model(3, n_steps=rounds * N_STEPS // ROUNDS)
    shorter.load_state_dict({name: x for name, x in donor.state_dict().items() if name in shorter.state_dict()})
    return logits(shorter)


def test_rank_0_shares_the_mean_of_the_weights() -> None:
    donor, model = language_model(1, n_steps=N_STEPS), recursive(0)
    to_recursive(donor, model)
    theirs = [donor.get_parameter(f"banks.ffn.decoder_{i}.up.weight") for i in (1, 3, 5)]
    torch.testing.assert_close(model.get_parameter("banks.ffn.decoder_1.up.weight"), torch.stack(theirs).mean(0))
    given = {name: x.mean() * torch.ones_like(x) if "norm" in name else x for name, x in donor.state_dict().items()}
    assert not torch.allclose(logits(model), logits(donor))
    alike = language_model(4, n_steps=N_STEPS)
    for name, x in given.items():  # every step with the mean weights of those that share them
        kind, _, rest = name.partition("decoder_")
        number, dot, part = rest.partition(".")
        if kind in ("banks.ffn.", "banks.self_attention.") and dot:
            sets = [donor.state_dict()[f"{kind}decoder_{i}.{part}"] for i in range(int(number) % 2, N_STEPS, 2)]
            x = torch.stack(sets).mean(0)
        alike.state_dict()[name].copy_(x if "norm" not in name else donor.state_dict()[name])
    torch.testing.assert_close(logits(model), logits(alike), rtol=0, atol=1e-10)


def test_more_rank_comes_nearer_to_every_map() -> None:
    donor, gaps = language_model(1, n_steps=N_STEPS), []
    for rank in (0, 4, 12):
        model = recursive(rank)
        to_recursive(donor, model)
        whole = model.get_parameter("banks.self_attention.decoder_0.out.weight")
        if rank:
            own = "banks.delta.self_attention_decoder_step_0_round_2.out"
            whole = whole + model.get_parameter(f"{own}.b_FR") @ model.get_parameter(f"{own}.a.weight")
        gaps.append(float((donor.get_parameter("banks.self_attention.decoder_4.out.weight") - whole).norm().detach()))
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_choices_without_effect_are_refused() -> None:
    donor = language_model(1, n_steps=N_STEPS)
    with pytest.raises(ConfigError, match=r"noise is 0\.1: has no effect: this model has no experts"):
        to_recursive(donor, recursive(2), noise=0.1)


def test_only_feed_forwards_become_experts() -> None:
    attention = {"kind": "experts", "n_experts": 4, "top_k": 2, "d_head": 6}
    with pytest.raises(ConfigError) as error:
        to_recursive(language_model(1, n_steps=2), language_model(2, n_steps=2, self_attention=attention))
    reason = "cannot be made of the donor's: only feed-forwards become experts"
    assert str(error.value) == f"model.decoder.self_attention.kind is 'experts': {reason}"


def test_another_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match="its donor has 5 steps: both need the same sub-layers at every step"):
        to_recursive(language_model(1, n_steps=5), recursive(2))


@pytest.mark.parametrize(("shared", "steps"), [("first", [0, 1]), ("last", [4, 5]), ("stepwise", [0, 5])])
def test_what_is_shared_may_be_one_of_the_steps(shared: Any, steps: list[int]) -> None:
    donor, model = language_model(1, n_steps=N_STEPS), recursive(0)
    to_recursive(donor, model, shared)
    for number, step in enumerate(steps):
        for name in ("self_attention.decoder_{}.out.weight", "ffn.decoder_{}.up.weight"):
            theirs = donor.get_parameter(f"banks.{name.format(step)}")
            assert torch.equal(model.get_parameter(f"banks.{name.format(number)}"), theirs)


@pytest.mark.parametrize(
    ("n_steps", "share", "steps"),
    [
        (12, {"share": "sequence", "n_unique": 3}, [0, 6, 11]),
        (6, {"share": "cycle_rev", "n_unique": 3}, [0, 2, 5]),
        (5, {"share": "cycle", "n_unique": 2}, [0, 4]),
        (5, {"share": [0, 0, 1, 2, 2]}, [0, 2, 4]),  # set 1 serves one step, which it takes
    ],
)
def test_sets_are_taken_evenly_from_the_first_step_to_the_last(
    n_steps: int, share: dict[str, Any], steps: list[int]
) -> None:
    donor = language_model(1, n_steps=n_steps)
    model = language_model(2, n_steps=n_steps, ffn={"d_ff": 40, "activation": "swiglu", "bias": False} | share)
    to_recursive(donor, model, "stepwise")
    found = [model.banks.ffn[name].up.weight for name in sorted(model.banks.ffn)]
    theirs = [donor.banks.ffn[f"decoder_{step}"].up.weight for step in range(n_steps)]
    assert [next(i for i, x in enumerate(theirs) if torch.equal(x, one)) for one in found] == steps


def _pair_model(seed: int, n_steps: int = 2, **ffn: Any) -> Model:
    stack = {"n_steps": n_steps, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 12} | ffn}
    config = {"d_model": 8, "dropout": 0.0, "source_vocab_size": 9, "target_vocab_size": 9, "encoder": stack}
    config["decoder"] = stack | {"cross_attention": {"n_heads": 2}}
    torch.manual_seed(seed)
    return build_model(Seq2SeqConfig.model_validate(config)).double().eval()


def test_a_set_of_both_stacks_is_made_of_both() -> None:
    donor, model = _pair_model(1), _pair_model(2, share="all", bank="both")
    to_recursive(donor, model)
    theirs = [x.up.weight for x in donor.banks.ffn.values()]
    assert len(theirs) == 4
    (own,) = (x.up.weight for x in model.banks.ffn.values())
    torch.testing.assert_close(own, torch.stack(theirs).mean(0))
    to_recursive(donor, model, "last")
    assert torch.equal(own, donor.banks.ffn["decoder_1"].up.weight)


def test_sets_of_both_stacks_are_taken_from_steps_that_they_serve() -> None:
    donor = _pair_model(1, n_steps=6)
    model = _pair_model(2, n_steps=6, share="sequence", n_unique=3, bank="both")
    to_recursive(donor, model, "stepwise")
    for number, step in ((0, "encoder_0"), (1, "encoder_3"), (2, "decoder_5")):
        assert torch.equal(model.banks.ffn[f"both_{number}"].up.weight, donor.banks.ffn[step].up.weight), number


def test_tables_of_relative_positions_are_those_of_the_steps_that_a_set_serves() -> None:
    relative = {"kind": "window", "window": 2}
    attention = {"n_heads": 4}
    donor = language_model(1, n_steps=4, relative=relative, self_attention=attention)
    shared = attention | {"share": "sequence", "n_unique": 2}
    model = language_model(2, n_steps=4, relative=relative, self_attention=shared)
    to_recursive(donor, model)
    theirs = [donor.banks.relative[f"self_attention_decoder_{i}"].table_HKR for i in range(4)]
    for number, steps in enumerate(((0, 1), (2, 3))):
        mean = torch.stack([theirs[i] for i in steps]).mean(0)
        torch.testing.assert_close(model.banks.relative[f"self_attention_decoder_{number}"].table_HKR, mean)


def test_tables_of_other_sizes_are_refused_and_none_are_needed() -> None:
    attention = {"n_heads": 4}
    donor = language_model(1, n_steps=2, relative={"kind": "window", "window": 2}, self_attention=attention)
    wider = language_model(2, n_steps=2, relative={"kind": "window", "window": 4}, self_attention=attention)
    with pytest.raises(ConfigError, match="has other sizes than the donor's tables"):
        to_recursive(donor, wider)
    to_recursive(donor, language_model(2, n_steps=2, self_attention=attention))  # rotary, which has none


def test_a_wide_feed_forward_has_the_biases_of_those_it_replaces_or_refuses_them() -> None:
    plain = {"d_ff": 40, "activation": "relu"}
    for donor_has, has in ((True, False), (False, True), (True, True)):
        donor = language_model(1, n_steps=3, ffn={**plain, "bias": donor_has})
        wide = language_model(2, n_steps=3, ffn={**plain, "d_ff": 120, "bias": has, "share": "all"})
        if donor_has and not has:
            with pytest.raises(ConfigError, match="without biases it would not compute what they do"):
                to_recursive(donor, wide)
            continue
        to_recursive(donor, wide)
        x = torch.randn(4, WIDTH, dtype=torch.float64)
        each = [donor.banks.ffn[f"decoder_{i}"](x) for i in range(3)]
        torch.testing.assert_close(wide.banks.ffn["decoder_0"](x), torch.stack(each).mean(0), rtol=0, atol=1e-12)


def test_biases_that_experts_would_lose_are_refused_and_new_ones_are_zero() -> None:
    plain = {"d_ff": 40, "activation": "relu"}
    routed = {"kind": "experts", "d_ff": 40, "n_experts": 4, "top_k": 2, "activation": "relu"}
    for donor_has, has in ((True, False), (False, True)):
        donor = language_model(1, n_steps=2, ffn={**plain, "bias": donor_has})
        model = language_model(2, n_steps=2, ffn={**routed, "bias": has, "gate": {"kind": "topk_softmax"}})
        if donor_has:
            with pytest.raises(ConfigError, match=r"cannot be made of the donor's: experts without down\.bias"):
                to_recursive(donor, model)
        else:
            to_recursive(donor, model)
            torch.testing.assert_close(logits(model), logits(donor), rtol=0, atol=1e-10)


def test_one_wide_feed_forward_gives_the_mean_of_those_it_replaces() -> None:
    donor = language_model(1, n_steps=3)
    wide = language_model(2, n_steps=3, ffn={"d_ff": 120, "activation": "swiglu", "bias": False, "share": "all"})
    to_recursive(donor, wide)
    x = torch.randn(4, WIDTH, dtype=torch.float64)
    each = [donor.banks.ffn[f"decoder_{i}"](x) for i in range(3)]
    torch.testing.assert_close(wide.banks.ffn["decoder_0"](x), torch.stack(each).mean(0), rtol=0, atol=1e-12)


def experts(seed: int, **stack: Any) -> Model:
    ffn = {"kind": "experts", "d_ff": 40, "n_experts": 4, "top_k": 2, "activation": "swiglu", "bias": False}
    return language_model(seed, **{"n_steps": 3} | stack, ffn={**ffn, "gate": {"kind": "topk_softmax"}})


def test_experts_without_noise_compute_what_they_are_copies_of() -> None:
    donor, model = language_model(1, n_steps=3), experts(2)
    to_recursive(donor, model)
    torch.testing.assert_close(logits(model), logits(donor), rtol=0, atol=1e-10)
    to_recursive(donor, model, noise=0.1)
    gap = float((logits(model) - logits(donor)).abs().max())
    assert gap > 1e-4
    first = model.get_parameter("banks.ffn.decoder_0.experts.up_EDF")
    spread = float(
        (first[0] - first[1]).detach().std() / donor.get_parameter("banks.ffn.decoder_0.up.weight").std().detach()
    )
    assert spread == pytest.approx(0.1 * 2**0.5, rel=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_experts_are_copied_on_the_device_of_the_models(noise: float) -> None:
    donor, model = language_model(1, n_steps=3), experts(2)
    to_recursive(donor, model, noise=noise)
    expected = dict(model.named_parameters())
    there = experts(2)
    for one in (donor, there):
        pretend_model(one)
    with pretended_device():
        to_recursive(donor, there, noise=noise)
        for name, parameter in there.named_parameters():
            torch.testing.assert_close(numbers_of(parameter), expected[name].detach())


def test_sub_layers_that_are_left_out_are_not_taken_and_new_ones_are_refused() -> None:
    donor = language_model(1, n_steps=3)
    bare = language_model(2, n_steps=3, ffn={"share": "none"})
    to_recursive(donor, bare)
    mine = bare.get_parameter("banks.self_attention.decoder_2.out.weight")
    assert torch.equal(mine, donor.get_parameter("banks.self_attention.decoder_2.out.weight"))
    with pytest.raises(ConfigError, match="both need the same sub-layers at every step"):
        to_recursive(bare, donor)
    with pytest.raises(ConfigError, match=r"model\.decoder\.ffn is 'decoder_0': cannot be made of the donor's"):
        to_recursive(donor, language_model(2, n_steps=3, ffn={"d_ff": 50, "activation": "swiglu", "bias": False}))


def test_full_rank_is_the_donor_also_where_its_feed_forwards_become_experts() -> None:
    donor = language_model(1, n_steps=N_STEPS)
    loop = {"n_steps": N_STEPS // ROUNDS, "repeats": ROUNDS, "norms": "by_round"}
    model, shared = (experts(2, n_steps=2, segments=[loop | {"delta_rank": rank}]) for rank in (40, 0))
    to_recursive(donor, model)
    torch.testing.assert_close(logits(model), logits(donor), rtol=0, atol=1e-10)
    to_recursive(donor, shared)
    assert not torch.allclose(logits(shared), logits(donor))
    with pytest.raises(ConfigError, match=r"model\.decoder\.ffn is 'decoder_0': .*it has experts there"):
        to_recursive(experts(2), language_model(1, n_steps=3))


def test_full_rank_is_the_donor_where_cross_attention_has_the_same_keys_in_all_rounds() -> None:
    def pair(seed: int, rank: int | None) -> Model:
        stack = {"n_steps": 1, "segments": [{"repeats": 2, "delta_rank": rank, "norms": "by_round"}]}
        decoder = {"n_steps": 2} if rank is None else stack
        attention, ffn = {"n_heads": 4, "bias": False, "output_gate": True}, {"d_ff": 16, "bias": False}
        own = {"self_attention": attention, "ffn": ffn, "norm": {"placement": "pre"}}
        settings = {"d_model": WIDTH, "source_vocab_size": 30, "target_vocab_size": 30, "dropout": 0.0}
        settings |= {"encoder": {"n_steps": 1} | own, "decoder": decoder | own | {"cross_attention": attention}}
        model = build_model(Seq2SeqConfig.model_validate(settings)).double().eval()
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3)
        return model

    donor, model, lower = pair(1, None), pair(2, WIDTH), pair(3, 2)
    queries, keys = (donor.get_parameter(f"banks.cross_attention.decoder_{i}.qkv.weight") for i in (0, 1))
    with torch.no_grad():
        keys[WIDTH:] = queries[WIDTH:]
        gaps = []
        for one in (model, lower):
            to_recursive(donor, one)
            gaps.append(float((one(IDS, IDS).logits_BTV - donor(IDS, IDS).logits_BTV).abs().max()))
    assert gaps[0] < 1e-10
    assert gaps[1] > 1e-3


def test_a_wider_feed_forward_has_no_delta_of_the_donors() -> None:
    loop = {"n_steps": 1, "repeats": 3, "delta_rank": 2}
    ffn = {"d_ff": 120, "activation": "swiglu", "bias": False, "share": "all"}
    with pytest.raises(ConfigError, match=r"model\.decoder\.ffn is 'decoder_0': cannot be made of the donor's"):
        to_recursive(language_model(1, n_steps=3), language_model(2, n_steps=1, segments=[loop], ffn=ffn))


def test_an_output_of_its_own_begins_as_the_tied_one() -> None:
    donor = language_model(1, n_steps=N_STEPS)
    config = donor.config.model_copy(update={"tie_embeddings": "none"})
    model = build_model(config).double().eval()
    to_recursive(donor, model)
    torch.testing.assert_close(logits(model), logits(donor), rtol=0, atol=1e-10)


def test_what_the_donors_outputs_need_is_not_dropped() -> None:
    tied = language_model(1, n_steps=N_STEPS)
    kept: dict[str, dict[str, Any]] = {
        "output_weight": {"tie_embeddings": "none"},
        "output_bias": {"output": {"bias": True}},
    }
    for name, settings in kept.items():
        donor = build_model(type(tied.config).model_validate(tied.config.model_dump() | settings)).double()
        to_recursive(donor, build_model(donor.config).double())
        with pytest.raises(ConfigError, match=rf"model is '{name}': is not in this model, and the donor's outputs"):
            to_recursive(donor, language_model(2, n_steps=N_STEPS))
    placed = language_model(1, n_steps=2, positions={"kind": "learned", "max_length": 16})
    with pytest.raises(ConfigError, match=r"model is 'banks\.positions\..* is not in this model"):
        to_recursive(placed, language_model(2, n_steps=2))
    looped = recursive(0, inject={"kind": "linear"})
    with pytest.raises(ConfigError, match=r"model is 'banks\.injection\..* is not in this model"):
        to_recursive(looped, language_model(2, n_steps=N_STEPS))
    for norm in ({"final": True}, {"embedding": True}):
        donor = language_model(1, n_steps=2, norm={"kind": "rms", "placement": "pre", "final": False} | norm)
        without = language_model(2, n_steps=2, norm={"kind": "rms", "placement": "pre", "final": False})
        with pytest.raises(ConfigError, match=r"model is 'banks\.norm\..* is not in this model"):
            to_recursive(donor, without)
    donor, other = (
        language_model(1, n_steps=n, segments=[{"n_steps": n, "repeats": 4 // n, "vectors": True}]) for n in (1, 2)
    )
    with pytest.raises(ConfigError, match=r"banks\.vectors\..* would be drawn at random: the donor has in the shape"):
        to_recursive(donor, other)


def test_a_donor_of_the_same_plan_is_copied_with_its_deltas_and_any_other_plan_is_refused() -> None:
    donor, model = recursive(4), recursive(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    to_recursive(donor, model)
    for name, parameter in donor.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter), name
    reason = r"rounds of the donor have maps of their own already .*leave training\.init_shared out"
    for other in (recursive(8), recursive(0), language_model(2, n_steps=N_STEPS)):
        with pytest.raises(ConfigError, match=reason):
            to_recursive(donor, other)


def test_a_bias_is_not_lost_where_the_plan_is_the_same() -> None:
    donor = language_model(1, n_steps=2, ffn={"d_ff": 40, "activation": "relu", "bias": True})
    model = language_model(2, n_steps=2, ffn={"d_ff": 40, "activation": "relu", "bias": False})
    with pytest.raises(ConfigError, match="cannot be made of the donor's"):
        to_recursive(donor, model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 40}, r"target_weight.* would be drawn at random: the donor has in the shape \(30, 24\) it"),
        ({"positions": {"kind": "learned", "max_length": 16}}, r"banks\.positions\..* the donor lacks it"),
    ],
)
def test_what_would_be_random_is_refused(change: dict[str, Any], message: str) -> None:
    donor = language_model(1, n_steps=N_STEPS)
    stack = {key: value for key, value in change.items() if key != "vocab_size"}
    model = language_model(2, n_steps=N_STEPS, **stack)
    if "vocab_size" in change:
        model = build_model(donor.config.model_copy(update=change)).double()
    with pytest.raises(ConfigError, match=message):
        to_recursive(donor, model)


def test_norms_of_another_kind_are_refused() -> None:
    donor = language_model(1, n_steps=N_STEPS, norm={"kind": "layer", "placement": "pre"})
    with pytest.raises(ConfigError, match="has other parts than the donor's norms"):
        to_recursive(donor, language_model(2, n_steps=N_STEPS))


@pytest.mark.parametrize("placement", ["post", "sandwich", "peri", "scores"])
def test_another_placement_of_norms_is_refused(placement: str) -> None:
    model = language_model(2, n_steps=N_STEPS, norm={"kind": "rms", "placement": placement})
    with pytest.raises(ConfigError, match=r"model\.decoder\.norm\.placement .* the same placement is needed"):
        to_recursive(language_model(1, n_steps=N_STEPS), model)
