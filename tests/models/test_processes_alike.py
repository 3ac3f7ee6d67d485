"""Processes that have to build the same graph do: whatever their rows are, and also where they have none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures import Sentence, any_architecture, draws, random_model, right_padded, sentences
from ostinato.data.batch import Batch
from ostinato.models import Model
from ostinato.models.losses import label_smoothed_loss
from ostinato.nn import RoundsBySentence
from ostinato.nn.sub_layer import Runnable, SubLayer
from ostinato.nn.why_not import why_not_by_sentence


def _pass(model: Model, batch: Batch) -> tuple[set[str], list[tuple[str, int, str]]]:
    """Return the parameters that get a gradient of a batch's objective, and the sub-layers in the order they ran."""
    ran: list[tuple[str, int, str]] = []

    def noted(sub_layer: SubLayer) -> Runnable:
        class Noted:
            prepare, fill_cache = sub_layer.prepare, sub_layer.fill_cache

            def __call__(self, *given: object) -> object:
                ran.append((sub_layer.stack, sub_layer.step, sub_layer.use.kind))
                return sub_layer(*given)  # type: ignore[arg-type]

        return Noted()  # type: ignore[return-value]

    for stack in model.stacks.values():
        stack.surround(noted)
    model.zero_grad(set_to_none=True)
    output = model(batch)
    loss = label_smoothed_loss(output.logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1).loss
    for stack in output.stacks.values():
        if stack.depth_cost is not None:
            loss = loss + stack.depth_cost * bool(batch.target.keep_BT.any())
    loss.backward()  # type: ignore[no-untyped-call]
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}, ran


@draws(20)
@given(st.data())
def test_all_rows_some_and_a_hidden_one_have_the_same_sub_layers_and_the_same_gradients(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    model = random_model(config).train()
    rows: list[Sentence] = data.draw(sentences(config))
    batch = right_padded(rows)
    last = data.draw(st.sampled_from([None, 1, 2]))
    compaction = data.draw(st.sampled_from(["auto", "always", "never"]))
    with model.execution(any_process=lambda _: True, gradient_rounds=last, compaction=compaction):
        expected = _pass(model, batch)
        for part in (*(batch.rows(slice(i, i + 1)) for i in range(len(rows))), batch.hidden_row()):
            found = _pass(model, part)
            assert found[0] ^ expected[0] == set()
            assert found[1] == expected[1]
        assert not [name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())]


@draws(8)
@given(st.data())
def test_rows_with_rounds_of_their_own_run_as_many_as_those_of_others(data: st.DataObject) -> None:
    from ostinato.config.halting import NoHaltingConfig

    config = data.draw(any_architecture(fully_shared=True, halting=st.just(NoHaltingConfig())))
    model = random_model(config).train()
    rows: list[Sentence] = data.draw(sentences(config))
    batch, n_rounds = right_padded(rows), tuple(data.draw(st.integers(1, 4)) for _ in rows)
    stacks = [name for name, stack in model.stacks.items() if why_not_by_sentence(stack) is None]
    last, found = data.draw(st.sampled_from([None, 1, 2])), []
    for own, chosen in [
        ((1,), None),
        (n_rounds, slice(None)),
        *(((n,), slice(i, i + 1)) for i, n in enumerate(n_rounds)),
    ]:
        rounds = dict.fromkeys(stacks, RoundsBySentence(own, least=max(n_rounds)))
        with model.execution(any_process=pytest.fail, gradient_rounds=last, rounds=rounds):
            found.append(_pass(model, batch.hidden_row() if chosen is None else batch.rows(chosen)))
    assert all(one == found[0] for one in found)
