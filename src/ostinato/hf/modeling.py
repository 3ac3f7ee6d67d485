"""What all our models have as models of the Hugging Face library: how they are built, read, and run.

A wrapped model is the attribute `model`; nothing of it is computed here but losses. `n_steps` and `halting_threshold`
are arguments of every call, and so of `generate`: rounds to run in place of the plans' own, and the threshold at which
tokens halt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from ostinato.config.training import RoundLossConfig
from ostinato.data.batch import Batch
from ostinato.errors import CheckpointError, ConfigError, Problem, on_one_line
from ostinato.hf.cache import DepthCache
from ostinato.hf.configuration import CODE, Exported, OstinatoConfig
from ostinato.hf.outputs import IGNORED, States, wanted
from ostinato.models import build_model
from ostinato.models.losses import add_auxiliary, balance_loss, depth_cost, loss_of_rounds, requested
from ostinato.models.output import ModelOutput
from ostinato.nn.execution import Execution, ExitScope
from ostinato.nn.init import init_projection

logger = logging.get_logger(__name__)


class _EmbeddingView(nn.Embedding):
    """The embeddings of a model as a module, which it never calls."""

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse it.

        Raises:
            ConfigError: always; the noise of Trainer's `neftune_noise_alpha` is such a hook.
        """
        reason = "is never called: hooks of it, such as Trainer's neftune_noise_alpha, would change nothing"
        raise ConfigError([Problem("get_input_embeddings()", "a view", reason)])


class OstinatoPreTrainedModel(PreTrainedModel):
    """Base of all: builds the model of a configuration, and says how it runs.

    Raises:
        CheckpointError: the configuration is of another kind of model than the class is for.
    """

    config_class = OstinatoConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["LanguageModel", "Seq2Seq", "Encoder"]
    kind: ClassVar[str]
    auto: ClassVar[str]
    """The Auto class that finds the class: its name behind AutoModel is the class's behind Ostinato."""
    config: OstinatoConfig

    def __init__(self, config: OstinatoConfig) -> None:
        super().__init__(config)
        name = f"Ostinato{self.auto.removeprefix('AutoModel')}"
        config.auto_map = {"AutoConfig": f"{CODE}.OstinatoConfig", self.auto: f"{CODE}.{name}"}
        given = config.settings()
        if given.kind != self.kind:
            raise CheckpointError(
                f"{type(self).__name__} is for models of the kind {self.kind}: config.json has {given.kind}"
            )
        # Weights are read into a model that is there: HF builds on a device without memory.
        with torch.device("cpu"):
            self.model: Any = build_model(self.adapted(given))
        self.post_init()

    def adapted(self, given: Exported) -> Exported:
        """Return the configuration of the model that the class wraps."""
        return given

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a head that the weights do not have; all else has been by our own rules."""
        if module is not getattr(self.model, "head", None) or not isinstance(module, nn.Linear):
            return
        # Older versions of the library call this for heads that were read, too; what was read has its mark.
        if not getattr(module.weight, "_is_hf_initialized", False):
            init_projection(module, self.model.config.init)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Read a folder, as the base class does, but safetensors only; weights that lack are an error, but for a head.

        Raises:
            CheckpointError: no weights that can be read; naming those that lack, are not the model's, or have other
                shapes (which `ignore_mismatched_sizes` allows); a half-precision type that the model cannot run in.
        """
        folder = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        wants_report, allows_shapes = (kwargs.pop(x, False) for x in ("output_loading_info", "ignore_mismatched_sizes"))
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True, "use_safetensors": True}
        try:
            model, report = super().from_pretrained(*args, **kwargs)
        except (OSError, SafetensorError) as error:
            reason = on_one_line(error)
            raise CheckpointError(f"{folder}: no weights that can be read (safetensors only): {reason}") from error
        lacking = sorted(name for name in report["missing_keys"] if not name.startswith("model.head."))
        heads = ("model.head.", "model.output_")
        unknown = sorted(name for name in report["unexpected_keys"] if not name.startswith(heads))
        problems = [f"{name} is missing" for name in lacking] + [f"{name} is not known" for name in unknown]
        if not allows_shapes:
            shapes = sorted((name, list(found), list(own)) for name, found, own in report["mismatched_keys"])
            problems += [f"{name} is {found}, and must be {own}" for name, found, own in shapes]
        if problems:
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise CheckpointError(f"{folder}: its weights are not the model's: {'; '.join(problems[:3])}{more}")
        places = sorted({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()})
        if len(places) > 1 or places == ["disk"]:
            reason = f"must lie on one device, and device_map puts it on {', '.join(places)}: name one (device_map=0)"
            raise CheckpointError(f"{folder}: the model {reason}")
        cls._check_type(folder, model)
        return (model, report) if wants_report else model

    @staticmethod
    def _check_type(name: object, model: OstinatoPreTrainedModel) -> None:
        """Refuse a half-precision type in which the model cannot run: gates, routers and others compute in float32."""
        if model.dtype not in (torch.bfloat16, torch.float16) or model.device.type == "meta":
            return
        ids = torch.full((1, 2), model.model.special_ids.bos, device=model.device)
        padded = torch.tensor([[1, 0]], device=model.device)
        given = {"input_ids": ids, "attention_mask": padded}
        given |= {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        # With a criterion alone a call has to name its threshold.
        threshold = 0.5 if model.config.exit is not None and model.config.halting_threshold is None else None
        try:
            with torch.no_grad():
                model(**given, halting_threshold=threshold)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            kind = str(model.dtype).removeprefix("torch.")
            reason = "parts of this model compute in float32: read it in float32, and call it under torch.autocast"
            raise CheckpointError(f"{name}: cannot run in {kind}: {reason}") from error

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the tokens that are read: a view, whose weight is the model's parameter."""
        weight = self.model.source_embedding if self.config.is_encoder_decoder else self.model.target_embedding
        view = _EmbeddingView(0, weight.shape[1])
        view.num_embeddings, view.weight = weight.shape[0], weight
        return view

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:
        """Return the embeddings, whose size stays.

        Raises:
            ConfigError: another size is asked for.
        """
        found = self.get_input_embeddings()
        if new_num_tokens is not None and new_num_tokens != found.num_embeddings:
            reason = f"the vocabulary of this model stays at {found.num_embeddings}: no tokens can be added"
            raise ConfigError([Problem("new_num_tokens", new_num_tokens, reason)])
        return found

    def enable_input_require_grads(self) -> None:
        """Do nothing: steps that are run again in the backward pass need no input that has a gradient."""

    def get_output_embeddings(self) -> None:
        """Return None: an output projection that is the embedding is the same parameter already."""

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        """Keep the states between steps only, and run each step again in the backward pass (`Execution.recompute`)."""
        self.model._execution = replace(self.model.current_execution, recompute=enable)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether steps are run again in the backward pass."""
        return bool(self.model.current_execution.recompute)

    @property
    def is_activation_checkpointing(self) -> bool:
        """The same under its name since transformers 5.24."""
        return self.is_gradient_checkpointing

    def _project_routers(self) -> None:
        """In training project routers' parameters onto their constraints before a pass; our loop does after updates."""
        if self.training and torch.is_grad_enabled():
            self.model.project_routers()

    def _replicate_for_data_parallel(self) -> Any:
        """Refuse it: Trainer in one process asks for it where there are several GPUs.

        Raises:
            ConfigError: always.
        """
        reason = "is not for these models: start one process a GPU (torchrun, accelerate launch)"
        raise ConfigError([Problem("DataParallel", True, reason)])

    def _asked(
        self, states: States, weights: bool | None, return_dict: bool | None
    ) -> tuple[States, bool | None, bool | None]:
        """Return what a call is to show and how: what it says, else what the configuration does."""
        config = self.config
        return (
            config.output_hidden_states if states is None else states,
            config.output_attentions if weights is None else weights,
            config.return_dict if return_dict is None else return_dict,
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _how(self, n_steps: int | None, halting_threshold: float | None) -> tuple[int | None, Execution]:
        """Return rounds and execution of a call: what it asks for, else what the configuration says.

        Raises:
            ConfigError: a value that the model cannot run with.
        """
        config, execution = self.config, cast(Execution, self.model.current_execution)
        if halting_threshold is None and not self.training:
            halting_threshold = config.halting_threshold
        n_steps = config.n_steps if n_steps is None else n_steps
        if n_steps is not None and type(n_steps) is not int:
            raise ConfigError([Problem("n_steps", n_steps, "must be a whole number of rounds, or None")])
        if halting_threshold is not None and type(halting_threshold) not in (int, float):
            raise ConfigError([Problem("halting_threshold", halting_threshold, "must be a number in [0, 1], or None")])
        if halting_threshold is not None or (config.exit is not None and not self.training):
            execution = replace(
                execution,
                halting_threshold=halting_threshold,
                exit=config.exit,
                exit_scope=cast(ExitScope, config.exit_scope),
            )
            execution = self.model.checked(execution)
        return n_steps, execution

    def _check_cache(self, cache: object, n_steps: int | None, halting_threshold: float | None) -> None:
        """Refuse what a call asks for where a cache was made in another way, which goes on as it began.

        Raises:
            ConfigError: naming what differs.
        """
        if not isinstance(cache, DepthCache):
            reason = "is no cache of this model: give what an earlier call of it returned, or none"
            raise ConfigError([Problem("past_key_values", type(cache).__name__, reason)])
        content = cache.content
        execution = content.execution or self.model.current_execution
        asked = {
            "n_steps": (n_steps, content.n_steps),
            "halting_threshold": (halting_threshold, execution.halting_threshold),
        }
        problems = [
            Problem(name, now, f"the cache was made with {'the own ones of the model' if before is None else before}")
            for name, (now, before) in asked.items()
            if now is not None and now != before
        ]
        if problems:
            raise ConfigError(problems)

    def _round_loss(self) -> RoundLossConfig:
        """Return of which rounds the loss of a pass is: in an evaluation that of the last one, as with us."""
        return self.config.loss_of_rounds() if self.training else RoundLossConfig()

    def _shown(self, states: States, weights: bool | None) -> list[str]:
        """Return what a pass is asked for: what the caller wants to see, and what the loss reads."""
        return [*wanted(states, weights), *requested(self._round_loss())]

    def _loss(self, output: ModelOutput, batch: Batch, labels_BL: Tensor, n_items: Any) -> Tensor:
        """Return the mean loss of the labels that count, with the auxiliary losses.

        Args:
            output: of the batch, with what is `_shown`; of a cached step logits alone, which have no other losses.
            n_items: labels of the whole update, where that is several batches; None: this batch is the update.
        """
        config, has_rounds = self.config, bool(output.stacks) and self.training
        round_loss = self._round_loss() if has_rounds else RoundLossConfig()
        if self.training and config.left_out:
            names = ", ".join(config.left_out)
            logger.warning_once(f"this model was trained with {names}, which have no counterpart here and are left out")
        if self.training and not output.stacks:
            logger.warning_once(
                "a loss with a cache, or with encoder_outputs given, is that of the logits alone: without those of "
                "rounds, of depth and of balance"
            )
        labels_BL = labels_BL.to(output.logits_BTV.device)
        batch = replace(batch, labels_BT=labels_BL, loss_mask_BT=labels_BL != IGNORED)
        # Drawn anew for every batch, as `TokenModel.loss` does: nobody says which update it is.
        draw = float(torch.rand(())) if round_loss.kind == "drawn" else 0.0
        smoothing = config.label_smoothing if self.training else 0.0
        sums = loss_of_rounds(self.model.read, output, batch, round_loss, smoothing, draw)
        n_labels = batch.loss_mask_BT.sum()
        n_all = n_labels if n_items is None else torch.as_tensor(n_items, device=n_labels.device)
        n_all = n_all.clamp_min(1)  # the loss of a batch none of whose labels counts is 0
        if not self.training:  # the loss of an evaluation is that of the last round alone
            return sums.loss / n_all
        balance, halting = config.losses()
        spread = balance_loss(output.by_router(), balance, self.model.balance_temperatures())
        return add_auxiliary(sums.loss / n_all, spread, depth_cost(output), halting.weight, float(n_labels / n_all))
