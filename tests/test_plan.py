from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.plan import PLACES, SCHEMES, Placement, SubLayerPlan, assign, build_plan


@pytest.mark.parametrize(
    ("scheme", "n_unique", "expected"),
    [
        ("individual", None, "012345"),
        ("all", None, "000000"),
        ("sequence", 2, "000111"),
        ("sequence", 3, "001122"),
        ("cycle", 2, "010101"),
        ("cycle", 3, "012012"),
        ("cycle_rev", 3, "012210"),
        ("cycle_rev", 2, "010110"),
    ],
)
def test_schemes_give_the_published_assignments(scheme: str, n_unique: int | None, expected: str) -> None:
    assert "".join(map(str, assign(scheme, 6, n_unique))) == expected  # type: ignore[arg-type]


@given(st.sampled_from(SCHEMES), st.integers(1, 12), st.data())
def test_every_scheme_uses_all_of_its_sets_and_nothing_else(scheme: str, n_steps: int, data: st.DataObject) -> None:
    n_unique = data.draw(st.integers(1, n_steps))
    sets = assign(scheme, n_steps, n_unique)  # type: ignore[arg-type]
    expected = {"individual": n_steps, "all": 1, "none": 0}.get(scheme, n_unique)
    assert len(sets) == n_steps
    assert {s for s in sets if s is not None} == set(range(expected))


def test_lists_with_gaps_or_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 entries but there are 4 steps"):
        assign([0, 1, None], 4)
    with pytest.raises(ValueError, match=r"without a gap, got \[0, 2\]"):
        assign([0, 2], 2)


def test_an_absent_sub_layer_has_no_use_and_no_norm() -> None:
    subs = [SubLayerPlan("self_attention", (0, None), "s"), SubLayerPlan("ffn", (None, 0), "s", share_norm=False)]
    plan = build_plan("s", subs, n_steps=2)
    assert [[use.kind for use in step.uses] for step in plan.steps] == [["self_attention"], ["ffn"]]
    assert [use.norms for use in plan.uses()] == [("self_attention_s_0",), ("ffn_s_step_1",)]
    assert plan.row("ffn") == (None, "s_0")
    assert plan.row("cross_attention") == (None, None)


@pytest.mark.parametrize(
    ("placement", "norms"),
    [
        ("post", (None, None, "ffn_s_0")),
        ("pre", ("ffn_s_0", None, None)),
        ("peri", ("ffn_s_0", "ffn_s_0_output", None)),
        ("output", (None, "ffn_s_0", None)),
        ("sandwich", ("ffn_s_0", None, "ffn_s_0_after")),
    ],
)
def test_a_placement_says_which_norms_a_use_has(placement: Placement, norms: tuple[str | None, ...]) -> None:
    (use,) = build_plan("s", [SubLayerPlan("ffn", (0,), "s", placement=placement)], n_steps=1).uses()
    assert (use.before, use.output, use.after) == norms
    assert use.norms == tuple(name for name in norms if name is not None)


def test_scores_alone_are_made_of_what_is_normed_and_what_has_none_has_no_norm() -> None:
    subs = [
        SubLayerPlan("self_attention", (0, 0), "s", placement="scores", share_norm=False),
        SubLayerPlan("ffn", (0, 0), "s", placement="scores", has_scores=False),
    ]
    attention, ffn, again, _ = build_plan("s", subs, n_steps=2).uses()
    assert (attention.scores, attention.before, attention.norms) == (
        "self_attention_s_step_0",
        None,
        ("self_attention_s_step_0",),
    )
    assert (again.before_keys, ffn.norms) == ("self_attention_s_step_1", ())
    assert PLACES["scores"] == ("scores",)


def test_rounds_hold_several_steps_and_may_be_repeated_only_where_all_of_them_are_alike() -> None:
    alike = build_plan("s", [SubLayerPlan("ffn", (0, 1, 0, 1), "s")], n_steps=4, steps_per_round=2)
    longer = alike.with_rounds(3)
    assert (alike.n_rounds, longer.n_rounds) == (2, 3)
    assert longer.row("ffn") == ("s_0", "s_1") * 3
    assert [step.index for step in longer.steps] == list(range(6))
    assert alike.with_rounds(1).row("ffn") == ("s_0", "s_1")
    for sub in (SubLayerPlan("ffn", (0, 1), "s"), SubLayerPlan("ffn", (0, 0), "s", share_norm=False)):
        plan = build_plan("s", [sub], n_steps=2)
        assert not plan.is_fully_shared
        with pytest.raises(ConfigError, match="n_steps is 3: the s has 2 rounds with different parameter sets"):
            plan.with_rounds(3)
    with pytest.raises(ConfigError, match="n_steps is 0: must be at least 1"):
        alike.with_rounds(0)
