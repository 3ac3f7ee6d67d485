"""A recipe: everything one run needs, from the task to the published numbers it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ostinato.config.base import Config, Count, Size, all_problems, inert
from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import ModelConfig, Seq2SeqConfig
from ostinato.config.positions import LearnedConfig
from ostinato.config.schema import leaves
from ostinato.config.special_ids import SpecialIds
from ostinato.config.training import TrainingConfig
from ostinato.errors import Inert, Problem


class TaskRef(BaseModel):
    """The task by name; its other keys are checked by the task's own configuration (`ostinato.tasks`)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str = "files"
    """Name of the task; files: files of the user's own (`data.train`, `data.dev`, `data.test`)."""

    def settings(self) -> dict[str, Any]:
        """Return all keys, the kind included."""
        return self.model_dump()


class EvaluationConfig(Config):
    """What is measured when training ends, and by `ostinato evaluate`."""

    checkpoint: Annotated[str, Field(pattern=r"^(best|last)(:[1-9]\d*)?$")] = "best"
    """Which weights are scored, and read by commands that are given no --checkpoint: best, last, or a mean (best:5,
    last:5)."""
    splits: list[str] | None = None
    """None: test where the task has one, else the test splits that data.test names, else dev."""
    metrics: list[str] | None = None
    """None: the task's own."""
    by: list[str] | None = None
    """Metadata columns to report every metric by; None: the task's own."""
    max_examples: Size | None = None
    """Examples of every split, spread evenly over it; None: all. Where texts are packed (data.block_length): texts."""


class ReferenceRow(Config):
    """A published number that this recipe's results are compared with."""

    source: str
    """Paper and table."""
    split: str
    """Split of the task that the value is of."""
    metric: str
    """Metric, by the name it has in results.json."""
    value: float
    """The published value."""
    by: dict[str, int | str] | None = None
    """Column and value of the examples it is of, such as {bin: 7}; None: the whole split."""
    task: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task that it is of, such as {split: mcd1}; where the run has others it is not shown."""
    band: tuple[float, float] | None = Field(default=None, strict=False)
    """Where our own result is expected."""


class Recipe(Config):
    """Task, data, model, training, decoding and evaluation of one run."""

    name: str = "run"
    """Name of the run and of its directory."""
    description: str = ""
    """One line for `ostinato recipes`."""
    task: TaskRef = TaskRef()
    """The task by name, and its settings."""
    data: DataConfig = DataConfig()
    """Files, tokenizers, lengths and batches."""
    model: ModelConfig = Seq2SeqConfig()
    """The model."""
    training: TrainingConfig = TrainingConfig()
    """How it is trained."""
    decoding: DecodingConfig = DecodingConfig()
    """How it generates output."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """What is measured at the end."""
    seed: Count = 1
    """Seed of initialisation, dropout and the order of examples."""
    reference: list[ReferenceRow] = Field(default_factory=list)
    """Published numbers to compare with."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings of data, training, evaluation and decoding that do not fit the model, or have no effect on it."""
        if self.data.target_tokenizer is not None and self.model.joins_pairs:
            reason = "a language model has one vocabulary: remove it and use data.tokenizer"
            yield Problem(f"{path}data.target_tokenizer", self.data.target_tokenizer.kind, reason)
        elif self.data.target_tokenizer is not None and getattr(self.model, "has_joint_embedding", False):
            reason = "needs one joint tokenizer: remove data.target_tokenizer, or use 'output' or 'none'"
            yield Problem(f"{path}model.tie_embeddings", getattr(self.model, "tie_embeddings", None), reason)
        yield from self.too_few_to_average(self.evaluation.checkpoint, f"{path}evaluation.checkpoint", path)
        keeps = {one.kind == "hf" for one in (self.data.tokenizer, self.data.target_tokenizer) if one is not None}
        if self.model.special_ids != SpecialIds() and keeps != {True}:
            given = self.model.special_ids.model_dump()
            reason = "a recipe's text is read by tokenizers whose ids are 0, 1 and 2: remove it (others: in Python)"
            yield Problem(f"{path}model.special_ids", given, reason)
        separator_id = getattr(self.model, "source_separator_id", None)
        if separator_id is not None and getattr(self.model, "source_separator", None) is None:
            reason = f"follows from {path}model.source_separator: set that, or null here"
            yield Problem(f"{path}model.source_separator_id", separator_id, reason)
        if len(keeps) == 2:
            kind = self.data.target_tokenizer.kind if self.data.target_tokenizer is not None else None
            reason = "one tokenizer keeps its ids (hf), the other does not: source and target have the same special ids"
            yield Problem(f"{path}data.target_tokenizer.kind", kind, reason)
        if not self.model.generates:
            reason = f"has no effect: a model with {path}model.head.kind={self.model.reads} writes no text; remove it"
            yield from inert(self.decoding, f"{path}decoding.", reason)
        elif (
            self.decoding.cached_rounds is not None
            and not any(all_problems(self.model))  # of a model that has some there may be no plan
            and (not_so := self.model.why_not_some_rounds())
        ):
            yield Problem(f"{path}decoding.cached_rounds", self.decoding.cached_rounds, not_so)
        if self.model.reads != "masked":
            reason = f"has no effect without {path}model.head.kind=masked: remove it"
            yield from inert(self.data.masking, f"{path}data.masking.", reason)
        drops = any(rate for key, rate in leaves(self.model.model_dump()) if key.rpartition(".")[2] == "dropout")
        if not drops and self.training.dropout_draws != "auto":
            reason = f"has no effect: every dropout of this model is 0 ({path}model.dropout); remove it"
            yield Inert(f"{path}training.dropout_draws", self.training.dropout_draws, reason)
        yield from self._too_long_for_positions(path)
        yield from self._texts_in_touch(path)
        stacks = self.model.stacks()
        if not stacks:
            reason = "has no effect: this model is a recurrence over positions, without steps of depth; remove it"
            for group in ("balance", "halting"):
                yield from _refused(getattr(self.training, group), f"{path}training.{group}.", reason)
            if self.training.checkpoint_activations:
                yield Inert(f"{path}training.checkpoint_activations", True, reason)
            return
        if not any(stack.has_router for stack in stacks.values()):
            reason = (
                "has no effect, because no sub-layer of this model chooses between experts: remove it, or give "
                "self_attention, cross_attention or ffn the kind experts, or a stack a sparse_layer, with n_experts "
                "above 1"
            )
            yield from _refused(self.training.balance, f"{path}training.balance.", reason)
        if not any(stack.halting.has_gate for stack in stacks.values()):
            rules = " or ".join(f"{path}model.{name}.halting.kind" for name in stacks)
            is_fixed = all(stack.halting.kind == "none" for stack in stacks.values())
            why = "nothing halts in this model" if is_fixed else "no token of this model learns when to halt"
            reason = f"has no effect, because {why}: remove it, or set {rules}"
            yield from _refused(self.training.halting, f"{path}training.halting.", reason)
        elif self.training.halting.capacity_warmup and not any(one.halting.kind == "select" for one in stacks.values()):
            key, reason = (
                f"{path}training.halting.capacity_warmup",
                "has no effect without halting.kind=select: remove it",
            )
            yield Inert(key, self.training.halting.capacity_warmup, reason)

    def data_by_text(self) -> DataConfig:
        """Return the data with every text a row of its own; a text of blocks, which has any length, is cut to what
        `data.max_target_length` and learned positions leave of it."""
        if self.data.block_length is None:
            return self.data
        positions = [stack.positions for stack in self.model.stacks().values()]
        learned = [one.max_length for one in positions if isinstance(one, LearnedConfig)]
        longest = min([self.data.max_target_length, *learned])
        cut = {"block_length": None, "max_target_length": longest, "over_length": "truncate"}
        return self.data.model_copy(update=cut)

    def _too_long_for_positions(self, path: str) -> Iterator[Problem]:
        """Yield the lengths that have no learned position, as far as settings alone can say."""
        data, decoding, generates = self.data, self.decoding, self.model.generates
        text = ("block_length", data.block_length or 0)
        if data.block_length is None:
            text = ("max_target_length", data.max_target_length)
        for name, stack in self.model.stacks().items():
            if not isinstance(stack.positions, LearnedConfig):
                continue
            reads_source = self.model.side_of(name) == "source" or not (generates or self.model.reads == "masked")
            read, length = ("max_source_length", data.max_source_length) if reads_source else text
            lengths = {f"{path}data.{read}": length}
            if generates and self.model.side_of(name) == "target":
                lengths[f"{path}decoding.max_length"] = decoding.max_length
            for key, length in lengths.items():
                if length > stack.positions.max_length:
                    where = f"{path}model.{name}.positions.max_length"
                    reason = f"has no position beyond {where} = {stack.positions.max_length}: lower it, or raise that"
                    yield Problem(key, length, reason)

    def _texts_in_touch(self, path: str) -> Iterator[Problem]:
        """Yield why the texts of a block would not stay apart in this model, where they should."""
        if self.data.block_attention == "block" or self.data.block_length is None:
            return
        key, value, stacks = f"{path}data.block_attention", self.data.block_attention, self.model.stacks()
        if self.model.reads != "sequence" or getattr(self.model, "mask", "causal") != "causal" or not stacks:
            reason = f"is for causal language models that are stacks ({path}model.kind=language_model): remove it"
            yield Problem(key, value, reason)
        for name, stack in stacks.items():
            if stack.ffn.kind == "separable_conv":
                reason = f"the convolutions of {path}model.{name}.ffn reach across texts: remove it"
                yield Problem(key, value, reason)
            if stack.halting.kind in ("select", "length"):
                rule = f"{path}model.{name}.halting.kind={stack.halting.kind}"
                yield Problem(key, value, f"{rule} decides by the whole block, and not text by text: remove it")

    def too_few_to_average(self, checkpoint: str, key: str, path: str = "", first: int = 0) -> Iterator[Problem]:
        """Yield why a mean (best:5) is of more checkpoints than the run keeps, or is sure to have.

        Args:
            key: of the setting that names it. first: updates up to which evaluations do not count for the best.
        """
        role, _, number = checkpoint.partition(":")
        training, wanted = self.training, int(number or 1)
        kept = training.keep_best if role == "best" else training.keep_last
        every = training.evaluate_every if role == "best" else training.save_every
        unranked = first // every if role == "best" and first < training.n_updates else 0
        certain = max(1, -(-training.n_updates // every) - unranked)  # an untrained model has one checkpoint
        if training.selection.patience is not None:
            n_sure = training.selection.patience + 1  # evaluations: the first one is the best so far
            certain = min(certain, n_sure if role == "best" else -(-n_sure * training.evaluate_every // every))
        if kept < wanted:
            yield Problem(key, checkpoint, f"the run keeps {kept}: set {path}training.keep_{role} to {wanted}")
        elif certain < wanted:
            name = "evaluate" if role == "best" else "save"
            stop = (
                ""
                if training.selection.patience is None
                else f", and may stop early ({path}training.selection.patience)"
            )
            reason = (
                f"the run has {certain} or more: {path}training.n_updates is {training.n_updates}, "
                f"{path}training.{name}_every {every}"
                + (f", {path}training.halting.off_updates {first}" if unranked else "")
                + f"{stop}; use {role}"
            )
            yield Problem(key, checkpoint, reason)


def _refused(config: Config, path: str, reason: str) -> Iterator[Problem]:
    """Give one reason against every setting of a group that is not at its default, inherited or not: weights of losses
    say what is to be learned, and are not dropped in silence as `inert` ones are."""
    for name, value in config:
        if value != type(config).model_fields[name].default:
            yield Problem(f"{path}{name}", value, reason)
