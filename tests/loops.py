"""Small models with loops, one for every mechanism of depth: each property of the contract is checked on all of them.

Drawn models have these mechanisms, too, and all combinations of them, but seldom a given one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from architectures import BOS, EOS, Sentence
from ostinato.config.model import Seq2SeqConfig

Settings = dict[str, Any]

STEPS: Settings = {"n_steps": 3, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 48}}
CROSS: Settings = {"cross_attention": {"n_heads": 2}}


def loop(repeats: int = 3, **own: Any) -> Settings:
    """Return a prelude, a step that is repeated, and a coda."""
    return {"segments": [{}, {"repeats": repeats} | own, {}]}


def repeated(**own: Any) -> Settings:
    """Return two steps that are repeated, and a coda."""
    return {"segments": [{"n_steps": 2, "repeats": 2} | own, {}]}


def beside(*segments: Settings) -> Settings:
    """Return a loop of one step among other segments."""
    return {"n_steps": sum(one.get("n_steps", 1) for one in segments), "segments": list(segments)}


POST: Settings = {"norm": {"placement": "post"}}
PRE: Settings = {"norm": {"kind": "rms", "placement": "pre"}}
PERI: Settings = {"norm": {"placement": "peri"}}
SCORES: Settings = {"norm": {"placement": "scores"}}
COORDINATES: Settings = {"positions": {"kind": "coordinates"}}
WINDOW: Settings = {"relative": {"kind": "window", "window": 5}}
ROTARY: Settings = {"relative": {"kind": "rotary"}}
ALIBI: Settings = {"relative": {"kind": "alibi"}}
DROPPED: Settings = {
    "self_attention": {"n_heads": 2, "dropout": 0.1},
    "ffn": {"d_ff": 48, "dropout": 0.1},
}
CHOICE: Settings = {"kind": "experts", "n_experts": 4, "top_k": 2}
EXPERTS: Settings = {
    "self_attention": CHOICE | {"n_heads": 2, "d_head": 8, "share": "all", "router": {"kind": "mlp", "dropout": 0.1}},
    "ffn": CHOICE | {"d_ff": 24, "share": "all", "router": {"kind": "hypersphere"}, "gate": {"kind": "sigmoid"}},
}
HEADS: Settings = {
    "self_attention": {"kind": "head_experts", "n_heads": 2, "n_kv_heads": 1, "d_head": 8, "n_experts": 4, "top_k": 2}
}

ADD, LINEAR, DECAY = ({"kind": kind} for kind in ("add", "linear", "decay"))
INPUT, ZEROS, LEARNED = ({"kind": kind} for kind in ("input", "zeros", "learned"))
NOISE = {"kind": "noise", "std": 0.3}
LOW: Settings = {"name": "low", "n_steps": 2, "repeats": 2, "state": ZEROS, "adds": ["high", "input"]}
HIGH: Settings = {"name": "high", "state": LEARNED, "adds": ["low"], "norm": True}
THREE: list[Settings] = [
    {"name": "a", "state": NOISE, "adds": ["c"], "norm": True},
    {"name": "b", "state": ZEROS, "adds": ["a"]},
]
THREE += [{"name": "c", "n_steps": 2, "adds": ["a", "b", "input"], "repeats": 2}]
TIMED, BY_ROUND = ({"modulation": {"kind": kind}} for kind in ("by_time", "by_round"))
TABLES: Settings = {"value_embeddings": {"share": [None, 0, 0], "gate_width": 4}}
FIXED: Settings = {"repeats": 2, "fixed": True, "inject": LINEAR, "norms": "by_round", "vectors": True}


def rule(kind: str, **own: Any) -> Settings:
    """Return a halting rule."""
    return {"halting": {"kind": kind} | own}


HALVED = rule("select", capacities=[None, 0.5], mix="interpolate", gate="score", scale=0.3)
ANEW = rule("select", among="all", z=0.1)

LOOPS: dict[str, tuple[Settings, Settings]] = {
    "segments": (
        PRE | beside({"end_norm": "own"}, {"repeats": 3}, {"end_map": True, "end_norm": "final"}),
        repeated(end_map=True) | WINDOW,
    ),
    "injection by sum": (loop(inject=ADD), PRE | loop(inject=ADD, state=LEARNED, end_norm="final")),
    "injection by a map": (
        PRE | loop(inject=LINEAR, state=ZEROS, round_norm=True),
        loop(inject=LINEAR, round_norm=True) | rule("act"),
    ),
    "injection with decay": (loop(inject=DECAY, state=ZEROS) | rule("act"), PRE | loop(inject=DECAY)),
    "first states of noise": (loop(inject=ADD, state=NOISE), loop(inject=LINEAR, state=NOISE) | PERI),
    "several states": (
        PRE | beside({"n_steps": 3, "repeats": 2, "states": [LOW, HIGH]}, {}),
        beside({}, {"n_steps": 4, "repeats": 2, "states": THREE}),
    ),
    "norms by round": (loop(norms="by_round"), PERI | repeated(norms="by_round") | rule("stick_breaking")),
    "vectors": (loop(vectors=True) | rule("act"), PRE | repeated(vectors=True)),
    "deltas": (loop(delta_rank=2), PRE | repeated(delta_rank=2)),
    "deltas of experts": (EXPERTS | loop(delta_rank=2), PRE | EXPERTS | repeated(delta_rank=1)),
    "modulation by round": (PRE | loop(**BY_ROUND), POST | repeated(**BY_ROUND) | rule("exit")),
    "modulation by time": (PRE | loop(**TIMED), POST | repeated(**TIMED) | rule("act")),
    "values by token": (TABLES | loop(), PRE | TABLES | repeated(keys="all")),
    "fixed segments": (
        beside(FIXED | {"round_norm": True}, {"repeats": 2}, FIXED | BY_ROUND),
        PRE | beside({}, {"repeats": 2}, FIXED | {"keys": "first", "n_steps": 2}) | rule("act"),
    ),
    "keys of the first round": (loop(keys="first"), PRE | repeated(keys="first") | ROTARY),
    "keys of all rounds": (repeated(keys="all") | WINDOW, repeated(keys="all") | PRE | ROTARY),
    "keys of all rounds, experts": (repeated(keys="all") | DROPPED, repeated(keys="all") | EXPERTS),
    "keys of all rounds, alibi": (repeated(keys="all") | ALIBI, repeated(keys="all") | DROPPED | WINDOW),
    "act": (COORDINATES | rule("act", scope="global"), loop() | rule("act", mix="interpolate")),
    "stick-breaking": (SCORES | rule("stick_breaking"), HEADS | ROTARY | rule("stick_breaking")),
    "stick-breaking, injection": (
        loop(inject=LINEAR) | rule("stick_breaking"),
        SCORES | HEADS | loop(inject=ADD, keys="first") | rule("stick_breaking"),
    ),
    "exit": (PRE | loop(inject=ADD) | rule("exit"), COORDINATES | rule("exit", threshold=0.9)),
    "rounds by length": (loop(inject=ADD, state=ZEROS) | rule("length", per_token=0.5), PRE | loop() | rule("length")),
    "chosen tokens": (
        loop(inject=LINEAR, state=ZEROS, round_norm=True) | rule("select"),
        POST | repeated(keys="first") | rule("select"),
    ),
    "chosen tokens, keys of all rounds": (HALVED | repeated(keys="all"), ANEW | POST | loop(keys="all")),
    "chosen tokens in every other round": (HALVED | COORDINATES, HALVED | PRE),
    "rounds by token": (
        loop(inject=LINEAR, state=ZEROS) | rule("token_choice"),
        repeated(keys="all") | rule("token_choice", z=0.1),
    ),
}


@cache
def looped(name: str) -> Seq2SeqConfig:
    """Return one of the models; both of its stacks have the mechanism."""
    encoder, decoder = LOOPS[name]
    sizes = {"d_model": 32, "dropout": 0.0, "source_vocab_size": 30, "target_vocab_size": 30}
    return Seq2SeqConfig.model_validate(sizes | {"encoder": STEPS | encoder, "decoder": STEPS | CROSS | decoder})


RAGGED = [
    Sentence([4, 5, 6, 7, EOS], [BOS, 8, 9, 5]),
    Sentence([4, EOS], [BOS]),
    Sentence([9, 8, EOS], [BOS, 5, 6]),
]
"""Sentences of several lengths."""
