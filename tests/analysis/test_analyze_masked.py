"""Analyses of a masked language model with experts: one stack, a symbol that no tokenizer has, no source."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.analysis import analyze as logic
from ostinato.analysis.studies import Subject
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

TINY = [
    *("model.d_model=16", "model.encoder.n_steps=2", "model.encoder.self_attention.n_heads=2"),
    *("model.encoder.ffn={kind: experts, n_experts: 3, top_k: 1, d_ff: 8, share: all}", "data.tokenizer.kind=words"),
    *("data.tokens_per_batch=128", "data.block_length=16", "training.n_updates=2", "training.n_threads=1"),
    *("training.device=cpu", "training.precision=float32", "evaluation.max_examples=8"),
]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("masked")
    lines = [
        f"the {animal} sees a {other}" for animal in ("cat", "dog", "cow") for other in ("fox", "hen", "owl", "ant")
    ]
    for name in ("train", "dev"):
        (folder / f"{name}.txt").write_text("\n".join(3 * lines) + "\n", encoding="utf-8")
    files = [f"data.{name}={folder / name}.txt" for name in ("train", "dev")]
    train(load_recipe("masked/small", [*TINY, *files]), folder / "run")
    return logic.subjects([load(folder / "run", device="cpu")], "dev", 30)[0]


@pytest.mark.slow
def test_what_applies_is_found_and_the_mask_has_a_name(subject: Subject) -> None:
    found = logic.survey([subject])
    assert {"experts", "expert-tokens", "token-map", "collapse", "self-similarity"} <= {s.name for s, _ in found.found}
    for _, (finding,) in found.found:
        finding.draw(False)
    (tokens,) = next(findings for study, findings in found.found if study.name == "expert-tokens")
    assert "<mask>" in " ".join(str(row[-1]) for row in tokens.rows)
    (counts_VE,) = tokens.arrays.values()
    told = [row[tokens.columns.index("information, nats")] for row in tokens.rows]
    share_VE = counts_VE / counts_VE.sum()
    apart_VE = share_VE.sum(1, keepdims=True) * share_VE.sum(0)
    is_there = share_VE > 0
    information = (share_VE[is_there] * np.log(share_VE[is_there] / apart_VE[is_there])).sum()
    (of_router,) = tokens.data["routers"]
    assert of_router["mutual_information"] == pytest.approx(information)
    assert tokens.note.endswith(f"in nats: {of_router['router']} of the encoder {information:.3g}.")
    assert min(told) >= -1e-9
    assert max(told) <= np.log((counts_VE.sum(1) > 0).sum())
    assert len(counts_VE) == subject.run.tokenizers.target.vocab_size + 1
