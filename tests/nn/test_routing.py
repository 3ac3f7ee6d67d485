"""Routers and gates against their formulas, and the gradients X-MoE derives (its section 2.2)."""

from __future__ import annotations

import math

import pytest
import torch

from ostinato.nn.routing import Gate, HypersphereRouter, LinearRouter, MlpRouter, Router

N, D, E = 7, 10, 4


def rows(seed: int = 0) -> torch.Tensor:
    return torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def routers() -> list[Router]:
    torch.manual_seed(0)
    return [LinearRouter(D, E).double(), MlpRouter(D, E).double(), HypersphereRouter(D, E, 2).double()]


def test_scores_are_those_of_the_formulas() -> None:
    linear, mlp, sphere = routers()
    h = rows()
    assert isinstance(linear, LinearRouter) and isinstance(mlp, MlpRouter) and isinstance(sphere, HypersphereRouter)  # noqa: PT018
    assert sphere.projection is not None
    for n in range(N):
        x = h[n]
        hidden = torch.tanh(mlp.hidden.weight @ x + mlp.hidden.bias)
        z = sphere.projection.weight @ x
        for e in range(E):
            torch.testing.assert_close(linear(h)[n, e], linear.experts_ED[e] @ x)
            torch.testing.assert_close(mlp(h)[n, e], mlp.scores.weight[e] @ hidden)
            cosine = z @ sphere.experts_EC[e] / (z.norm() * sphere.experts_EC[e].norm())
            torch.testing.assert_close(sphere(h)[n, e], cosine)


def test_scores_are_float32_under_autocast_and_equal_inputs_give_equal_scores() -> None:
    torch.manual_seed(0)
    h = torch.randn(N, D)
    for router in (LinearRouter(D, E), MlpRouter(D, E), HypersphereRouter(D, E, 2)):
        plain = router(h)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = router(h)
        assert cast.dtype == torch.float32
        torch.testing.assert_close(cast, plain, rtol=0, atol=0)


def test_the_embeddings_of_a_hypersphere_router_keep_their_norm_through_updates() -> None:
    torch.manual_seed(0)
    router = HypersphereRouter(D, E, 2)
    optimizer = torch.optim.AdamW(router.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        assert torch.allclose(router.experts_EC.norm(dim=1), torch.full((E,), 0.1))
        router(torch.randn(N, D)).square().sum().backward()
        optimizer.step()
        assert not torch.allclose(router.experts_EC.norm(dim=1), torch.full((E,), 0.1))
        router.project()


def test_the_ablations_of_a_hypersphere_router_are_what_they_say() -> None:
    h = rows()
    plain = HypersphereRouter(D, E, 2, has_projection=False, is_normalised=False).double()
    torch.testing.assert_close(plain(h), h @ plain.experts_EC.T)
    before = plain.experts_EC.detach().clone() * 3
    with torch.no_grad():
        plain.experts_EC.copy_(before)
    plain.project()
    assert torch.equal(plain.experts_EC, before)
    fixed = HypersphereRouter(D, E, 2, temperature=0.07, learns_temperature=False)
    assert not fixed.tau.requires_grad
    low = HypersphereRouter(D, E, 2, temperature=1e-9)
    assert low.temperature().item() == pytest.approx(1e-4)


@pytest.mark.parametrize("tau", [1e-9, -0.5, 1e-4, 0.3])
def test_a_temperature_below_its_floor_is_used_at_the_floor_and_comes_back(tau: float) -> None:
    router = HypersphereRouter(D, E, 2, temperature=tau)
    used = router.temperature()
    assert used.item() == max(torch.tensor(tau), torch.tensor(1e-4)).item()
    (gradient,) = torch.autograd.grad(3 * used, router.tau)
    assert gradient.item() == 3.0
    router.project()
    assert router.tau.item() == used.item()
    optimizer = torch.optim.SGD([router.tau], lr=0.1)
    (-router.temperature()).backward()
    optimizer.step()
    assert router.temperature().item() == pytest.approx(used.item() + 0.1)


def test_gates_are_those_of_their_formulas() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, -1.0]], dtype=torch.float64)
    p = torch.softmax(scores, 1)[0]
    chosen = Gate("softmax", 2, 4)(scores)
    assert chosen.experts_NK.tolist() == [[1, 2]]
    torch.testing.assert_close(chosen.gates_NK[0], p[[1, 2]])
    again = Gate("softmax", 2, 4, is_renormalised=True)(scores).gates_NK[0]
    torch.testing.assert_close(again, p[[1, 2]] / (p[1] + p[2] + 1e-6))
    e = math.e
    two = Gate("topk_softmax", 2, 4)(scores).gates_NK[0]
    torch.testing.assert_close(two, torch.tensor([e / (e + 1), 1 / (e + 1)], dtype=torch.float64))
    torch.testing.assert_close(Gate("sigmoid", 2, 4)(scores).gates_NK[0], torch.sigmoid(scores[0, [1, 2]]))


@pytest.mark.parametrize(("kind", "renormalised"), [("softmax", True), ("topk_softmax", False)])
def test_a_gate_that_starves_its_router_is_refused(kind: str, renormalised: bool) -> None:
    with pytest.raises(ValueError, match="always has gate 1: its router would get no gradient"):
        Gate(kind, 1, 4, is_renormalised=renormalised)  # type: ignore[arg-type]
    Gate(kind, 1, 1, is_renormalised=renormalised)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"k must be in \[1, 4\]"):
        Gate("softmax", 5, 4)


def test_sampled_experts_are_drawn_in_training_only_and_never_twice() -> None:
    gate = Gate("softmax", 3, 6, n_sampled=2)
    scores = torch.randn(500, 6, generator=torch.Generator().manual_seed(1))
    calm = gate(scores).experts_NK
    assert torch.equal(calm, scores.topk(3, dim=1).indices)
    torch.manual_seed(0)
    drawn = gate(scores, training=True).experts_NK
    assert torch.equal(drawn[:, 0], calm[:, 0])
    assert (drawn.sort(1).values.diff(dim=1) > 0).all()
    assert not torch.equal(drawn.sort(1).values, calm.sort(1).values)


def test_experts_are_chosen_by_scores_also_where_their_probabilities_underflow() -> None:
    scores = torch.tensor([[0.0, -300.0, -200.0, -250.0]])
    assert torch.softmax(scores, 1)[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    for gate in (Gate("softmax", 3, 4), Gate("topk_softmax", 3, 4), Gate("sigmoid", 3, 4)):
        assert gate(scores).experts_NK.tolist() == [[0, 2, 3]]


def test_sampling_follows_the_remaining_probabilities() -> None:
    gate = Gate("softmax", 2, 3, n_sampled=1)
    scores = torch.tensor([[2.0, 1.0, 0.0]]).expand(20_000, 3)
    torch.manual_seed(0)
    second = gate(scores, training=True).experts_NK[:, 1]
    share = float((second == 1).float().mean())
    assert share == pytest.approx(math.e / (math.e + 1), abs=0.01)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_gradient_through_the_gate_is_the_one_that_x_moe_derives(kind: str) -> None:
    """Linear router: J2^T g = sum_j c_j e_j, in the span of the embeddings."""
    torch.manual_seed(0)
    router, h = LinearRouter(D, E).double(), rows()
    expert_output, upstream = torch.randn(N, D, dtype=torch.float64), torch.randn(N, D, dtype=torch.float64)
    choice = Gate(kind, 1, E)(router(h))  # type: ignore[arg-type]
    [found] = torch.autograd.grad((choice.gates_NK * expert_output * upstream).sum(), h)
    inner = (expert_output * upstream).sum(1)
    gates, k = choice.gates_NK[:, 0], choice.experts_NK[:, 0]
    if kind == "sigmoid":
        expected = (gates * (1 - gates) * inner)[:, None] * router.experts_ED[k]
    else:
        delta = torch.nn.functional.one_hot(k, E).double()
        expected = (gates[:, None] * (delta - choice.probs_NE) * inner[:, None]) @ router.experts_ED
    torch.testing.assert_close(found, expected)
    basis = torch.linalg.qr(router.experts_ED.T).Q
    torch.testing.assert_close(found @ basis @ basis.T, found)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_on_the_hypersphere_it_is_the_derived_one_in_the_projections_rows_and_not_along_the_row(kind: str) -> None:
    """ds_i/dh = W^T (I - u u^T) v_i / |z| with z = W h, u = z / |z|, v_i = e_i / |e_i|; scores are s / tau."""
    torch.manual_seed(0)
    router, h = HypersphereRouter(D, E, 3).double(), rows()
    assert router.projection is not None
    tau, W = router.temperature().detach(), router.projection.weight
    upstream = torch.randn(N, dtype=torch.float64)
    choice = Gate(kind, 1, E)(router(h) / router.temperature())  # type: ignore[arg-type]
    [found] = torch.autograd.grad((choice.gates_NK[:, 0] * upstream).sum(), h)
    expected = []
    for n in range(N):
        z = W @ h[n]
        u, gate, k = z / z.norm(), choice.gates_NK[n, 0], int(choice.experts_NK[n, 0])
        total = torch.zeros(D, dtype=torch.float64)
        for i in range(E):
            v = router.experts_EC[i] / router.experts_EC[i].norm()
            ds = W.T @ (v - u * (u @ v)) / z.norm()
            chosen = float(i == k)
            share = chosen * gate * (1 - gate) if kind == "sigmoid" else gate * (chosen - choice.probs_NE[n, i])
            total = total + share / tau * ds
        expected.append(upstream[n] * total)
    torch.testing.assert_close(found, torch.stack(expected).detach())
    basis = torch.linalg.qr(W.T).Q
    torch.testing.assert_close(found @ basis @ basis.T, found)
    torch.testing.assert_close((found * h).sum(1), torch.zeros(N, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("kind", "n_dimensions"), [("softmax", E - 1), ("sigmoid", E)])
def test_rows_that_learn_through_a_linear_router_only_move_in_the_span_of_its_embeddings(
    kind: str, n_dimensions: int
) -> None:
    """Representation collapse (X-MoE, section 2.2). The coefficients c_j of a softmax sum to 0: one dimension less."""
    torch.manual_seed(0)
    router = LinearRouter(24, E).double().requires_grad_(False)
    start = torch.randn(60, 24, dtype=torch.float64)
    h = start.clone().requires_grad_()
    gate, outputs = Gate(kind, 1, E), torch.randn(60, dtype=torch.float64)  # type: ignore[arg-type]
    for _ in range(100):
        [grad] = torch.autograd.grad((gate(router(h)).gates_NK[:, 0] * outputs).sum(), h)
        h = (h + 10.0 * grad).detach().requires_grad_()
    moved = torch.linalg.svdvals((h - start).detach())
    assert float(moved[n_dimensions - 1]) > 1e-3
    assert float(moved[n_dimensions]) < 1e-9 * float(moved[0])
    assert _effective_rank(h.detach()) < 0.9 * _effective_rank(start)


def _effective_rank(rows_ND: torch.Tensor) -> float:
    """exp of the entropy of the normalised singular values."""
    p = torch.linalg.svdvals(rows_ND)
    p = p / p.sum()
    return float((-(p * p.log()).sum()).exp())


@pytest.mark.parametrize(
    "router", [MlpRouter(6, 4), HypersphereRouter(6, 4, 3), HypersphereRouter(6, 4, 3, is_normalised=False)]
)
def test_scores_are_products_with_the_projected_rows(router: MlpRouter | HypersphereRouter) -> None:
    router.eval()
    h_ND = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    projected = router.projected(h_ND)
    assert projected is not None
    if isinstance(router, MlpRouter):
        experts = router.scores.weight
    else:
        experts = router.experts_EC
        experts = torch.nn.functional.normalize(experts, dim=1) if router.is_normalised else experts
    torch.testing.assert_close(projected @ experts.T, router(h_ND))


def test_a_linear_router_looks_at_rows_as_they_are() -> None:
    assert LinearRouter(6, 4).projected(torch.zeros(1, 6)) is None
    unprojected = HypersphereRouter(6, 4, 3, has_projection=False, is_normalised=False)
    assert unprojected.projected(torch.zeros(1, 6)) is None
