"""The compiled kernels against plain code of a few lines, and how the library is made."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ostinato.kernels.activation import GATES, activate
from ostinato.kernels.native import (
    AttentionLink,
    CachedKeys,
    Chain,
    FeedForwardLink,
    NormOf,
    RouteOf,
    build,
    calls,
    few_rows,
    gates,
    library,
    links,
    read_cache,
)
from ostinato.training.threads import cpu_threads
from reference.equations import ACTIVATIONS

needs_kernels = pytest.mark.skipif(library() is None, reason="no C compiler here")
THREADS = (1, 2, 3)


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def test_this_machine_has_them_or_says_why(caplog: pytest.LogCaptureFixture) -> None:
    build._loaded.cache_clear()
    with caplog.at_level("INFO"):
        found = build.library()
    assert (found is None) == ("compiled kernels: none" in caplog.text)


@needs_kernels
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of x86-64")
@pytest.mark.slow
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_they_are_made_for_processors_without_wide_registers_and_with(
    processor: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = [f"-march={processor}" if one.startswith("-march") else one for one in build._OPTIONS]
    assert f"-march={processor}" in options
    monkeypatch.setattr(build, "_OPTIONS", tuple(options))
    assert build._made(tmp_path, build._compiler()).is_file()


SIZES = [
    *[(0, 256, 40), (1, 256, 384), (5, 1024, 40), (2, 33, 101), (12, 7, 9), (3, 16, 8), (1, 1, 1)],
    *[(8, 512, 16), (31, 1031, 50), (160, 72, 9), (33, 2048, 24)],  # several chunks of columns, and parts of them
]


@needs_kernels
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_few_rows_are_the_plain_product_whatever_the_number_of_threads(
    sizes: tuple[int, int, int], has_bias: bool
) -> None:
    N, D, n_out = sizes
    x, weight, bias = numbers(N, D), numbers(n_out, D, seed=1) / D**0.5, numbers(n_out, seed=2) if has_bias else None
    found = []
    for n in THREADS:
        with cpu_threads(n):
            found.append(few_rows(x[:, None], weight, bias))
    torch.testing.assert_close(found[0], F.linear(x, weight, bias)[:, None])
    assert all(torch.equal(found[0], other) for other in found)
    torch.testing.assert_close(few_rows(x.t().contiguous().t(), weight, bias), F.linear(x, weight, bias))


@needs_kernels
@pytest.mark.parametrize(("D", "n_out"), [(64, 27), (37, 27), (1039, 27), (64, 28), (39, 12), (1034, 31)])
def test_what_a_row_makes_does_not_depend_on_the_rows_beside_it(D: int, n_out: int) -> None:
    x, weight, bias = numbers(14, D), numbers(n_out, D, seed=1) / D**0.5, numbers(n_out, seed=2)
    alone = torch.cat([few_rows(row, weight, bias) for row in x.split(1)])
    torch.testing.assert_close(alone, F.linear(x, weight, bias))
    for n in range(2, 15):  # whole blocks of rows, and everything that is left of them
        assert torch.equal(few_rows(x[:n], weight, bias), alone[:n]), n


def read_plainly(
    kv: Tensor, q: Tensor, rows: list[int], places: list[list[int]], keep: Tensor | None, n_beams: int, scale: float
) -> Tensor:
    """Return what every query reads, key by key."""
    _, _, H, _, K = kv.shape
    read = torch.empty_like(q)
    for n, hypothesis in enumerate(rows):
        b = hypothesis // n_beams
        at = torch.tensor(places[b]), torch.arange(len(places[b]))
        for head in range(q.shape[1] // K):
            keys, values = kv[0, at[0], head % H, at[1]], kv[1, at[0], head % H, at[1]]
            scores = scale * keys @ q[n, head * K : (head + 1) * K]
            if keep is not None:
                scores = scores.masked_fill(~keep[b], -1e30)
            read[n, head * K : (head + 1) * K] = torch.softmax(scores, 0) @ values
    return read


@needs_kernels
@settings(max_examples=80)
@given(st.data())
def test_reading_a_cache_is_attention(data: st.DataObject) -> None:
    """Of heads of any width, hypotheses that have changed places, padding, beams that share a memory, and choices."""
    draw = data.draw
    H, K = draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 8, 16, 32, 40, 64, 121]))
    S, n_choices, n_beams = draw(st.integers(1, 70)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    B, seed = draw(st.integers(1, 4)), draw(st.integers(0, 999))
    make = torch.Generator().manual_seed(seed)
    is_new = draw(st.booleans()) and n_beams == 1
    size = draw(st.sampled_from([0.1, 1.0, 9.0]))
    kv = torch.randn(2, B, H, S + draw(st.integers(0, 3)), K, generator=make) * size
    n_placed = draw(st.integers(0, S - is_new)) if n_beams == 1 else 0
    table = torch.randint(B, (B, n_placed), generator=make, dtype=torch.int32)
    keep = torch.rand(B, S, generator=make) < 0.6 if draw(st.booleans()) else None
    asks = sorted(draw(st.sets(st.integers(0, B * n_beams - 1), min_size=1))) if draw(st.booleans()) else None
    rows = list(range(B * n_beams)) if asks is None else asks
    wide = torch.randn(len(rows), n_choices * H * K + 5, generator=make)
    q, new = wide[:, : n_choices * H * K], torch.randn(B, 2 * H * K, generator=make)
    found = []
    for n in THREADS:
        keys = CachedKeys(kv.clone(), 0.3, n_choices, n_beams=n_beams)
        keys.ask(None if asks is None else torch.tensor(asks))
        keys.see(S, table if n_placed else None, keep)
        with cpu_threads(n):
            found.append(read_cache(keys, q, new if is_new else None))
        cached = keys.kv_2RHSK
    if is_new:
        assert torch.equal(cached[:, :, :, S - 1], new.view(B, 2, H, K).transpose(0, 1))
    places = [[*table[b].tolist(), *[b] * (S - n_placed)] for b in range(B)]
    expected = read_plainly(cached, q, rows, places, keep, n_beams, 0.3)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5 * max(1.0, size))
    assert all(torch.equal(found[0], other) for other in found)


def normed(x: Tensor, norm: NormOf | None) -> Tensor:
    if norm is None:
        return x
    if norm.is_rms:
        return F.rms_norm(x, (norm.width,), norm.weight_D, norm.eps)
    return F.layer_norm(x, (norm.width,), norm.weight_D, norm.bias_D, norm.eps)


@needs_kernels
def test_a_cache_without_positions_gives_nothing() -> None:
    keys = CachedKeys(torch.randn(2, 3, 2, 4, 8), 0.3, 1)
    keys.see(0)
    assert read_cache(keys, torch.randn(3, 16), None).tolist() == torch.zeros(3, 16).tolist()


@needs_kernels
@settings(max_examples=80)
@given(st.data())
def test_a_chain_is_its_sub_layers_one_after_the_other(data: st.DataObject) -> None:
    draw = data.draw
    N, H, K = draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.sampled_from([4, 5, 16]))
    D, is_before, has_bias = draw(st.sampled_from([4, 24, 37])), draw(st.booleans()), draw(st.booleans())
    make = torch.Generator().manual_seed(draw(st.integers(0, 999)))

    def affine(n_in: int, n_out: int) -> tuple[Tensor, Tensor | None]:
        bias = torch.randn(n_out, generator=make) if has_bias else None
        return torch.randn(n_out, n_in, generator=make) / n_in**0.5, bias

    def norm() -> NormOf | None:
        kind = draw(st.sampled_from(["layer", "rms", "bare", "none"]))
        weight, bias = torch.rand(D, generator=make) + 0.5, torch.randn(D, generator=make)
        known = {"layer": (False, weight, bias), "rms": (True, weight, None), "bare": (False, None, None)}
        return None if kind == "none" else NormOf(*known[kind], D, 1e-5)

    x = torch.randn(N, D, generator=make)
    shown = torch.randn(N, D, generator=make) if draw(st.booleans()) else None
    links: list[Any] = []
    expected, readers, added = x, {}, {}
    for i, kind in enumerate(draw(st.lists(st.sampled_from(["self", "cross", *ACTIVATIONS]), min_size=1, max_size=4))):
        of_norm = norm()
        if i and (n_added := draw(st.sampled_from([0, 1, N]))):  # nothing, the same to all rows, or one each
            added[i] = torch.randn(n_added, D, generator=make)
            expected = expected + added[i]
        entered = normed(expected, of_norm) if is_before else expected
        if kind in ("self", "cross"):
            q, kv, out = affine(D, H * K), affine(D, 2 * H * K), affine(H * K, D)
            seen = normed(shown, of_norm) if is_before and shown is not None else shown
            made = F.linear(seen if seen is not None and i == 0 else entered, *kv)
            cache = torch.randn(2, N, H, 6, K, generator=make)
            keys = CachedKeys(cache, K**-0.5).see(5)
            after = cache.clone()
            if kind == "self":
                after[:, :, :, 4] = made.view(N, 2, H, K).transpose(0, 1)
            places = [[b] * 5 for b in range(N)]
            f = F.linear(read_plainly(after, F.linear(entered, *q), list(range(N)), places, None, 1, K**-0.5), *out)
            given_kv = kv if kind == "self" else None
            links.append(AttentionLink(of_norm, is_before=is_before, queries=q, keys_values=given_kv, output=out))
            readers[i] = keys
        else:
            up, down = affine(D, 2 * 9 if ACTIVATIONS[kind][1] else 9), affine(9, D)
            f = F.linear(activate(F.linear(entered, *up), kind), *down)  # type: ignore[arg-type]
            links.append(FeedForwardLink(of_norm, kind, is_before=is_before, up=up, down=down))  # type: ignore[arg-type]
        expected = expected + f if is_before else normed(expected + f, of_norm)
    last = norm()
    expected = normed(expected, last)
    chain = Chain(links, last)
    for i, keys in readers.items():
        chain.read(i, keys)
    for i, added_ND in added.items():
        chain.add([i], added_ND[None])
    for n in THREADS:
        with cpu_threads(n):
            torch.testing.assert_close(chain(x, shown), expected, rtol=2e-4, atol=2e-4)


@needs_kernels
@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_of_many_inputs_are_the_chosen_maps(has_bias: bool) -> None:
    N, D, F_, E = 13, 150, 77, 3
    x, scores = numbers(N, D), numbers(E, D, seed=1)
    up, down = numbers(E, D, F_, seed=2) / D**0.5, numbers(E, F_, D, seed=3) / F_**0.5
    up_bias, down_bias = (numbers(E, n, seed=n) if has_bias else None for n in (F_, D))
    route = RouteOf(scores, None, False, False, 1.0, 2, "topk_softmax", False)
    link = FeedForwardLink(None, "relu", is_before=True, up=(up, up_bias), down=(down, down_bias), route=route)
    gates_N2, chosen_N2 = F.linear(x, scores).topk(2, dim=1)
    expected = x.clone()
    for gate_N1, expert_N in zip(gates_N2.softmax(1).split(1, dim=1), chosen_N2.unbind(1), strict=True):
        hidden = torch.einsum("nd,ndf->nf", x, up[expert_N]) + (0 if up_bias is None else up_bias[expert_N])
        made = torch.einsum("nf,nfd->nd", hidden.relu(), down[expert_N])
        expected += gate_N1 * (made if down_bias is None else made + down_bias[expert_N])
    alone = torch.cat([Chain([link])(row) for row in x.split(1)])
    for n in THREADS:
        with cpu_threads(n):
            found = Chain([link])(x)
            torch.testing.assert_close(found, expected)
            assert torch.equal(found, alone)


@needs_kernels
@pytest.mark.parametrize("kind", [kind for kind in ACTIVATIONS if kind not in GATES])
def test_activations_are_the_exact_ones_and_do_not_depend_on_where_vectors_end(kind: Any) -> None:
    magnitudes = torch.cat([torch.linspace(0, 12, 1500), torch.logspace(-30, 4, 515)])
    x = torch.cat([magnitudes, -magnitudes]).view(-1, 31)
    # Behind the values stand zeros, to which what is made of them is added.
    up, down = torch.cat([torch.eye(31), torch.zeros(31, 31)], 1), torch.cat([torch.zeros(31, 31), torch.eye(31)])
    chain = Chain([FeedForwardLink(None, kind, is_before=True, up=(up, None), down=(down, None))])
    given, moved = (torch.cat([value, torch.zeros_like(x)], 1) for value in (x, x.roll(5, 1)))
    for n in THREADS:
        with cpu_threads(n):
            found = chain(given)[:, 31:]
            torch.testing.assert_close(found.double(), activate(x.double(), kind), rtol=3e-7, atol=3e-7)
            assert torch.equal(chain(moved)[:, 31:], found.roll(5, 1))


@needs_kernels
@pytest.mark.parametrize("kind", [kind for kind in ACTIVATIONS if kind not in GATES])
def test_what_is_no_number_is_none_behind_an_activation(kind: Any) -> None:
    up, down = torch.ones(19, 5), torch.ones(5, 19)
    up[17, 2] = torch.nan
    x = torch.ones(3, 5)
    x[1:, 2] = 0.0
    link = FeedForwardLink(None, kind, is_before=True, up=(up, None), down=(down, None))
    expected = x + F.linear(activate(F.linear(x, up), kind), down)
    assert expected.isnan().all()
    torch.testing.assert_close(Chain([link])(x), expected, equal_nan=True)


STRUCTURES = {
    "sub_layers.h": {"Norm": links._Norm, "Attention": links._Attention, "FeedForward": links._FeedForward}
    | {"Link": links._Link, "Route": links._Route, "Keys": calls._Keys, "Seen": calls._Seen, "Matrix": calls.MatrixOf},
    "halting.c": {"Rule": gates._Rule, "StickGate": gates._Stick},
    "full_attention.c": {"Heads": calls._Heads, "FullAttention": calls._FullAttention},
    "large_products.c": {"Product": calls._Product, "GroupedProducts": calls._GroupedProducts},
}
NUMBERS = {
    "sub_layers.h": {name.upper(): number for name, number in (links._ACTIVATIONS | links._GATES).items()}
    | {"TANH": links._TANH, "LAYER_NORM": False, "RMS_NORM": True},
    "halting.c": {"ENDS": gates._ENDS, "ACT": gates._ACT, "STICK": gates._STICK},
}


@needs_kernels
@pytest.mark.parametrize("source", STRUCTURES)
def test_structures_and_numbers_are_those_of_the_c_code(source: str, tmp_path: Path) -> None:
    claims = [f"{name} == {int(number)}" for name, number in NUMBERS.get(source, {}).items()]
    for name, made in STRUCTURES[source].items():
        claims.append(f"sizeof({name}) == {ctypes.sizeof(made)}")
        for field, kind in made._fields_:
            place = getattr(made, field)
            claims.append(f"offsetof({name}, {field}) == {place.offset}")
            claims.append(f"sizeof((({name} *)0)->{field}) == {ctypes.sizeof(kind)}")
    program = tmp_path / "claims.c"

    def holds(claims: list[str]) -> bool:
        lines = [f'#include "{build._SOURCES / source}"', *(f'_Static_assert({one}, "");' for one in claims)]
        program.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [*build._compiler(), "-fsyntax-only", "-march=native", "-fopenmp", "-w", str(program)]
        return subprocess.run(command, capture_output=True).returncode == 0

    assert not holds([claims[0].replace("==", "!=")])
    assert holds(claims)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Forget the library, and give it an empty cache folder, into which little is optimised: that is faster."""
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_OPTIONS", ("-O0", *build._OPTIONS[1:]))
    monkeypatch.delenv("OSTINATO_NATIVE", raising=False)
    build._loaded.cache_clear()
    yield tmp_path  # type: ignore[misc]
    build._loaded.cache_clear()


def loaded_again() -> str:
    """Forget the library, take it from the cache folder, and return what is said of it."""
    build._loaded.cache_clear()
    return build.described()


@needs_kernels
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_the_library_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert build.library() is not None
    finally:
        os.umask(before)
    folder = fresh / "kernels"
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".json", ".so"]
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(build.subprocess, "Popen", None)
    assert loaded_again().startswith(f"compiled, {folder}")


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "no note", "broken note", "other note"])
def test_a_damaged_library_is_made_again(fresh: Path, damage: str) -> None:
    assert build.library() is not None
    (path,), (note,) = fresh.glob("kernels/*.so"), fresh.glob("kernels/*.json")
    whole = path.read_bytes()
    match damage:
        case "truncated":
            path.write_bytes(whole[: len(whole) // 3])
        case "flipped":
            path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
        case "empty":
            path.write_bytes(b"")
        case "no note":
            note.unlink()
        case "broken note":
            note.write_text("{")
        case "other note":
            note.write_text("[1]")
    if damage in ("truncated", "flipped", "empty"):
        # A file that is mapped must not change: another process has loaded it, and what is there now is another file.
        damaged = path.read_bytes()
        path.unlink()
        path.write_bytes(damaged)
    assert loaded_again().startswith("compiled, ")
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert hashlib.sha256(path.read_bytes()).hexdigest() in note.read_text()


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("who", ["cache", "folder", "library", "note"])
def test_nothing_is_loaded_that_others_may_have_written(fresh: Path, who: str) -> None:
    planted = b"planted"
    folder = fresh / "kernels"
    assert build.library() is not None
    (path,), (note,) = folder.glob("*.so"), folder.glob("*.json")
    path.unlink()
    path.write_bytes(planted)
    note.write_text(json.dumps({"sha256": hashlib.sha256(planted).hexdigest()}))
    {"cache": fresh, "folder": folder, "library": path, "note": note}[who].chmod(0o777)
    said = loaded_again()
    assert build.library() is not None
    if who in ("cache", "folder"):
        assert said == f"compiled, for this process only: others may write to {fresh if who == 'cache' else folder}"
        assert path.read_bytes() == planted
    else:
        assert said.startswith("compiled, ")
        assert path.read_bytes() != planted


@needs_kernels
def test_without_a_cache_folder_the_library_is_compiled_for_this_process(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fresh / "home"
    home.write_text("no folder can be made in this")
    monkeypatch.setenv("OSTINATO_CACHE", str(home / "cache"))
    said = loaded_again()
    assert build.library() is not None
    assert re.fullmatch(
        rf"compiled, for this process only: {home}\S* cannot be made \(.+\); OSTINATO_CACHE names another folder", said
    )
    assert list(fresh.iterdir()) == [home]


@pytest.mark.slow
@needs_kernels
def test_a_library_without_our_functions_is_refused_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SIGNATURES", {"no_such_function": "p"})
    assert build.library() is None
    assert "no_such_function" in build.described()
    monkeypatch.setattr(build.subprocess, "Popen", None)
    assert "tried again after a day, or once" in loaded_again()
    (note,) = fresh.glob("kernels/*.json")
    yesterday = note.stat().st_mtime - 25 * 3600
    os.utime(note, (yesterday, yesterday))
    monkeypatch.undo()
    monkeypatch.setenv("OSTINATO_CACHE", str(fresh))
    assert loaded_again().startswith("compiled, ")


@needs_kernels
def test_a_compiler_that_hangs_is_stopped_with_all_it_started_and_tried_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (build._TIMEOUT_S, build._REMEMBERED_S) == (60, 24 * 3600)  # docs/trust.md names them
    compiler = fresh / "cc"
    compiler.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {fresh}/child\nwait\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(build, "_TIMEOUT_S", 0.5)
    assert build.library() is None
    assert "did not end within 0.5 s" in build.described()
    state = Path(f"/proc/{(fresh / 'child').read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not list(fresh.glob("kernels/.making-*"))
    monkeypatch.setattr(build.subprocess, "Popen", None)
    assert "tried again after a day, or once" in loaded_again()


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false", 'cc "'])
def test_without_a_compiler_that_works_there_are_none(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    with caplog.at_level("INFO"):
        assert build.library() is None
    assert "compiled kernels: none" in caplog.text
    assert build.described().startswith("none")
    assert not list(fresh.rglob("*.so"))


def test_they_can_be_switched_off(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_NATIVE", "0")
    assert build.library() is None
    assert "switched off" in build.described()
    assert not list(fresh.iterdir())


def test_nor_without_a_home(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build, "cache_folder", homeless)
    assert build.library() is None
    assert "home" in build.described()
