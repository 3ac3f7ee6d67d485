"""Models with preludes, several states, routers that choose tokens, and exits: every panel of each is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.config.model import LanguageModelConfig
from ostinato.evaluation.loading import load
from ostinato.models import build_model
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.viewer.calls import Call
from ostinato.viewer.curve import draw_curve
from ostinato.viewer.describe import describe_run
from ostinato.viewer.inspecting import _request, attention, inspect
from ostinato.viewer.opened import open_runs
from ostinato.viewer.schema import AttentionRequest, CurveRequest, End, Limits, Point, Sentence

RECIPES = [f"looped/{name}-toy" for name in ("huginn", "hrm-text", "mor", "mod", "ouro", "cotformer", "moeut")]
TEXT = "".join(f"the cat sat on mat {i} and ran\n" for i in range(20))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_looped_models_are_looked_into_at_every_setting(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    data = [f"data.{split}={tmp_path / 'text.txt'}" for split in ("train", "dev")]
    small = ["training.n_updates=2", "training.n_threads=1", "data.tokens_per_batch=256", "training.device=cpu"]
    train(load_recipe(recipe, [*data, *small]), tmp_path / "run")
    opened = open_runs({"run": load(tmp_path / "run", device="cpu")}, Limits())["run"]
    info, call = describe_run(opened), Call(60)
    depths: list[dict[str, object]] = [{}]
    for stack in info.stacks:
        depths += [{"rounds": {stack.name: stack.rounds + 1}}, {"rounds": {stack.name: 1}}] if stack.varies else []
        depths += [] if stack.threshold is None else [{"threshold": 0.3}]
    depths += [{"exit": name, "threshold": 0.5} for name in info.exits]
    for depth in depths:
        sentence = Sentence.model_validate({"run": "run", "text": "the cat sat", "max_length": 3, **depth})
        found = inspect(opened, sentence, call)
        (stack,) = found.stacks
        assert found.cost.macs > 0
        assert len(found.predictions.rounds) >= 2
        assert found.output is not None
        known = sentence.model_dump() | {"output_ids": found.output.ids}
        for place in stack.attention:
            at = {"stack": stack.name, "step": place.step, "kind": place.kind}
            weights = attention(opened, AttentionRequest.model_validate(known | at), call).weights
            assert len(weights) == place.n_heads
            assert all(row is None or len(row) == len(stack.tokens) for row in weights[0])
    if any(stack.varies for stack in info.stacks):
        lines: list[Point | End] = []
        request = CurveRequest(run="run", split=info.splits[0], n=3, along="rounds")
        draw_curve(opened, request, call, lines.append)
        macs = [line.macs for line in lines[1:] if isinstance(line, Point)]
        assert macs == sorted(macs)
    opened.close()


@pytest.mark.parametrize(
    ("halting", "what"), [("none", "rounds"), ("act", "residual"), ("select", "rounds"), ("token_choice", "rounds")]
)
def test_predictions_by_round_are_read_of_what_routers_leave(halting: str, what: str) -> None:
    shared = {"n_steps": 3, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    decoder = shared | {"halting": {"kind": halting}}
    config = LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": decoder})
    assert _request(build_model(config)) == {what}
