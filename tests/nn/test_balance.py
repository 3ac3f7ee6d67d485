"""Balance losses: their documented constants, padding, gradients, and accumulation over steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from balance_losses import LOSSES
from ostinato.nn import balance
from ostinato.nn.routing import Gate
from ostinato.nn.types import Routing

E = 4


def routing(logits: torch.Tensor, k: int = 1, weight: torch.Tensor | None = None, step: int = 0) -> Routing:
    choice = Gate("softmax", k, logits.shape[1])(logits)
    n = logits.shape[0]
    weight = torch.ones(n, dtype=logits.dtype) if weight is None else weight
    numbers = logits, *choice[:1], choice[1], choice[2], weight
    return Routing("router", "encoder", step, *numbers, torch.arange(n), shape_BT=(1, n))


def sharp(experts: list[int], height: float = 60.0) -> torch.Tensor:
    return height * torch.nn.functional.one_hot(torch.tensor(experts), E).double()


def random_logits(n: int, seed: int = 0) -> torch.Tensor:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(n, E, dtype=torch.float64, generator=make, requires_grad=True)


# Even and sharp; everything to one expert.
CONSTANTS = {
    "switch": (1.0, float(E)),
    "hypersphere": (1.0, float(E)),
    "mutual_information": (-math.log(E), 0.0),
    "importance": (0.0, E - 1.0),
    "sequence_entropy": (-math.log(E), 0.0),
}


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", CONSTANTS)
def test_balanced_and_collapsed_routing_have_the_documented_constants(name: str, k: int) -> None:
    balanced, collapsed = CONSTANTS[name]
    if name == "switch":  # counts all places of a row alike, whatever their gates
        collapsed /= k
    even, one = routing(sharp([0, 1, 2, 3, 3, 2, 1, 0]), k), routing(sharp([2] * 8), k)
    assert float(LOSSES[name]([even])) == pytest.approx(balanced, abs=1e-9)
    assert float(LOSSES[name]([one])) == pytest.approx(collapsed, abs=1e-9)


def test_flat_scores_have_the_z_loss_of_a_uniform_router() -> None:
    flat = routing(torch.zeros(5, E, dtype=torch.float64))
    assert float(balance.z([flat])) == pytest.approx(math.log(E) ** 2)
    assert float(balance.mutual_information([flat])) == pytest.approx(0.0, abs=1e-12)


def test_the_mutual_information_loss_is_minus_the_information_rows_give_about_experts() -> None:
    logits = random_logits(6)
    p = torch.softmax(logits, 1)
    joint = p / 6
    mean = joint.sum(0)
    information = (joint * (joint / (mean[None] / 6)).log()).sum()
    torch.testing.assert_close(balance.mutual_information([routing(logits)]), -information)
    # Minimising it makes rows sharp and use even: both entropies go the right way along its gradient.
    loss = balance.mutual_information([routing(logits)])
    [grad] = torch.autograd.grad(loss, logits)
    moved = routing((logits - 0.1 * grad).detach())
    assert float(balance.mutual_information([moved])) < loss.item()


@pytest.mark.parametrize("name", LOSSES)
def test_padding_changes_no_loss_and_no_gradient_whatever_it_holds(name: str) -> None:
    logits = random_logits(5)
    garbage = torch.full((3, E), float("nan"), dtype=torch.float64)
    loss = LOSSES[name]([routing(logits, k=2)])
    padded = Routing(
        *("router", "encoder", 0),
        torch.cat([logits, garbage]),
        torch.cat([torch.softmax(logits, 1), garbage]),
        torch.cat([routing(logits, k=2).experts_NK, torch.zeros(3, 2, dtype=torch.long)]),
        torch.cat([routing(logits, k=2).gates_NK, garbage[:, :2]]),
        torch.tensor([1.0] * 5 + [0.0] * 3, dtype=torch.float64),
        torch.arange(8),
        shape_BT=(1, 8),
    )
    found = LOSSES[name]([padded])
    torch.testing.assert_close(found, loss)
    torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(loss, logits))


@pytest.mark.parametrize("name", LOSSES)
def test_steps_that_share_a_router_make_one_loss_over_all_their_rows(name: str) -> None:
    first, second = random_logits(4), random_logits(3, seed=1)
    apart = LOSSES[name]([routing(first), routing(second, step=1)])
    together = LOSSES[name]([routing(torch.cat([first, second]))])
    torch.testing.assert_close(apart, together)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_means_and_every_one_sends_a_gradient_to_the_scores(name: str) -> None:
    logits = random_logits(5)
    once, twice = LOSSES[name]([routing(logits)]), LOSSES[name]([routing(torch.cat([logits, logits]))])
    torch.testing.assert_close(once, twice)
    [grad] = torch.autograd.grad(once, logits)
    assert float(grad.norm()) > 1e-4


@pytest.mark.parametrize("name", LOSSES)
def test_rows_count_by_the_mass_that_remains(name: str) -> None:
    logits = random_logits(3)
    doubled = torch.cat([logits, logits[:1]])
    weight = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(LOSSES[name]([routing(logits, weight=weight)]), LOSSES[name]([routing(doubled)]))


@pytest.mark.parametrize("name", LOSSES)
def test_rows_that_count_alike_count_whole_whatever_mass_remains_and_padding_not_at_all(name: str) -> None:
    logits = random_logits(4)
    weight = torch.tensor([1.0, 0.5, 1e-4, 0.0], dtype=torch.float64, requires_grad=True)
    rows = balance.JoinedRoutings.of([routing(logits, weight=weight)], uniform=True)
    loss = LOSSES[name](rows)
    torch.testing.assert_close(loss, LOSSES[name]([routing(logits[:3])]))
    assert float(balance.load(rows).total) == 3.0
    assert torch.autograd.grad(loss, weight, allow_unused=True) == (None,)  # halting gates get nothing of it


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_float32_under_autocast(name: str) -> None:
    logits = random_logits(50).detach().float().requires_grad_()
    plain = LOSSES[name]([routing(logits, k=2)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = LOSSES[name]([routing(logits, k=2)])
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (cast, plain)), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["switch", "hypersphere", "mutual_information", "importance", "sequence_entropy"])
def test_descending_a_loss_evens_out_the_use_of_experts(name: str) -> None:
    """The sign: a router that prefers one expert for all rows, trained by the loss alone."""
    torch.manual_seed(0)
    rows, router = torch.randn(80, 6, dtype=torch.float64), torch.randn(E, 6, dtype=torch.float64).requires_grad_()
    bias = torch.tensor([5.0, 0.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([router, bias], lr=0.05)
    entropies = []
    for _ in range(150):
        found = routing(rows @ router.T + bias)
        entropies.append(balance.load([found]).entropy)
        loss = LOSSES[name]([found])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert entropies[0] < 0.75 * math.log(E)
    assert entropies[-1] > 0.9 * math.log(E)
    if name == "mutual_information":
        assert loss.item() < -0.85 * math.log(E)


def test_use_is_even_within_every_sentence_over_all_steps_and_sentences_of_other_stacks_are_others() -> None:
    first, second, third = (torch.softmax(random_logits(6, seed=s).detach(), 1) for s in (0, 1, 2))

    def of(probs: torch.Tensor, stack: str, step: int, rows: list[int]) -> Routing:
        experts, weight = torch.zeros(len(rows), 1, dtype=torch.long), torch.ones(len(rows), dtype=torch.float64)
        numbers = probs.log(), probs, experts, probs[:, :1], weight
        return Routing("router", stack, step, *numbers, torch.tensor(rows), shape_BT=(3, 4))

    # Sentences of four columns: of the first six rows four belong to one, two to the next; the last one has none.
    found = balance.sequence_entropy(
        [
            of(first, "encoder", 0, [0, 1, 2, 3, 4, 5]),
            of(second[:2], "encoder", 1, [1, 4]),
            of(third, "decoder", 0, [*range(6)]),
        ]
    )
    sentences = [
        torch.cat([first[:4], second[:1]]),
        torch.cat([first[4:], second[1:2]]),
        third[:4],
        third[4:],
    ]
    entropies = [-(p.mean(0) * p.mean(0).log()).sum() for p in sentences]
    torch.testing.assert_close(found, -torch.stack(entropies).mean())


@pytest.mark.parametrize("name", ["switch", "hypersphere", "mutual_information", "z"])
def test_losses_of_heads_that_choose_by_themselves_are_means_over_heads(name: str) -> None:
    heads = [routing(random_logits(5, seed=s).detach(), k=2) for s in (0, 1)]
    together = Routing(
        *("router", "encoder", 0),
        torch.cat([one.logits_NE for one in heads], 1),
        torch.cat([one.probs_NE for one in heads], 1) / 2,
        torch.cat([one.experts_NK + E * h for h, one in enumerate(heads)], 1),
        torch.cat([one.gates_NK for one in heads], 1),
        heads[0].weight_N,
        heads[0].rows_N,
        heads[0].shape_BT,
        n_heads=2,
    )
    expected = torch.stack([LOSSES[name]([one]) for one in heads]).mean()
    torch.testing.assert_close(LOSSES[name]([together]), expected)
    entropy = balance.sequence_entropy([together]) + math.log(2)
    torch.testing.assert_close(entropy, torch.stack([balance.sequence_entropy([one]) for one in heads]).mean())
    alone = torch.stack([balance.load([one]).row_entropy for one in heads]).mean()
    torch.testing.assert_close(balance.load([together]).row_entropy, alone)


def test_permuting_experts_changes_no_loss() -> None:
    logits = random_logits(6)
    order = torch.tensor([2, 0, 3, 1])
    for loss in LOSSES.values():
        torch.testing.assert_close(loss([routing(logits[:, order], k=2)]), loss([routing(logits, k=2)]))


def test_load_says_which_experts_are_used_and_which_are_dead() -> None:
    found = balance.load([routing(sharp([0, 0, 0, 1])), routing(sharp([1]), weight=torch.zeros(1).double())])
    assert found.fraction_E.tolist() == [0.75, 0.25, 0.0, 0.0]
    assert float(found.entropy) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert float(found.row_entropy) == pytest.approx(0.0, abs=1e-12)
    assert float(found.total) == 4.0


def test_parts_of_the_choices_add_up_to_one_over_many_rows() -> None:
    # Thirds, added up one by one in float32, make 1.0027 of them.
    n = 400_000
    scores, experts = torch.zeros(n, 3), torch.arange(3).expand(n, 3)
    numbers = scores, torch.full_like(scores, 1 / 3), experts, torch.full_like(scores, 1 / 3), torch.ones(n)
    found = balance.load([Routing("router", "encoder", 0, *numbers, torch.arange(n), shape_BT=(1, n))])
    assert found.fraction_E.tolist() == pytest.approx([1 / 3] * 3, rel=1e-6)


@pytest.mark.untyped
def test_scores_are_joined_for_the_losses_that_read_them_alone() -> None:
    found = routing(random_logits(4), k=2)
    without = replace(found, logits_NE=None)
    for name in LOSSES.keys() - {"hypersphere", "z"}:
        assert torch.equal(LOSSES[name]([without]), LOSSES[name]([found]))
    assert torch.equal(balance.load([without]).entropy, balance.load([found]).entropy)


@pytest.mark.parametrize("name", LOSSES)
def test_probabilities_that_underflow_give_finite_gradients(name: str) -> None:
    logits = torch.tensor([[0.0, 200.0, 1.0, 0.0], [300.0, 0.0, 2.0, 1.0]], requires_grad=True)
    [grad] = torch.autograd.grad(LOSSES[name]([routing(logits)]), logits)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_rows_joined_once_are_those_of_the_routings(name: str) -> None:
    routings = [routing(random_logits(4), k=2), routing(random_logits(3, seed=1), k=2, step=1)]
    assert torch.equal(LOSSES[name](balance.JoinedRoutings.of(routings)), LOSSES[name](routings))


@pytest.mark.parametrize("name", LOSSES)
def test_where_no_row_takes_part_a_loss_is_a_number_without_gradient(name: str) -> None:
    logits = random_logits(3)
    loss = LOSSES[name]([routing(logits, weight=torch.zeros(3, dtype=torch.float64))])
    [grad] = torch.autograd.grad(loss, logits, allow_unused=True, materialize_grads=True)
    assert float(loss.detach()) == 0.0
    assert not bool(grad.any())


def test_a_loss_over_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one routing"):
        balance.switch([])
