"""The Hugging Face library's view of our models: importing this package registers them with its Auto classes.

    import ostinato.hf
    model = AutoModelForCausalLM.from_pretrained(FOLDER)        FOLDER: what `ostinato export hf RUN FOLDER` wrote

`configuration` says what config.json holds, `modeling` what all classes have; `language_model`, `seq2seq` and `encoder`
are those classes. `cache` is what decoding keeps, `export` writes folders. It needs the extra `hf`.
"""

from __future__ import annotations

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ostinato.hf.cache import DepthCache
from ostinato.hf.configuration import OstinatoConfig
from ostinato.hf.encoder import (
    OstinatoForMaskedLM,
    OstinatoForQuestionAnswering,
    OstinatoForSequenceClassification,
    OstinatoForTokenClassification,
)
from ostinato.hf.language_model import OstinatoForCausalLM
from ostinato.hf.modeling import OstinatoPreTrainedModel
from ostinato.hf.seq2seq import OstinatoForSeq2SeqLM

__all__ = [
    "DepthCache",
    "OstinatoConfig",
    "OstinatoForCausalLM",
    "OstinatoForMaskedLM",
    "OstinatoForQuestionAnswering",
    "OstinatoForSeq2SeqLM",
    "OstinatoForSequenceClassification",
    "OstinatoForTokenClassification",
    "OstinatoPreTrainedModel",
]

AutoConfig.register(OstinatoConfig.model_type, OstinatoConfig, exist_ok=True)
for _auto, _model in (
    (AutoModelForCausalLM, OstinatoForCausalLM),
    (AutoModelForSeq2SeqLM, OstinatoForSeq2SeqLM),
    (AutoModelForMaskedLM, OstinatoForMaskedLM),
    (AutoModelForSequenceClassification, OstinatoForSequenceClassification),
    (AutoModelForTokenClassification, OstinatoForTokenClassification),
    (AutoModelForQuestionAnswering, OstinatoForQuestionAnswering),
):
    _auto.register(OstinatoConfig, _model, exist_ok=True)
# By this list, which `register` leaves alone, Trainer knows for `label_smoothing_factor` whose labels must be shifted.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[OstinatoConfig.model_type] = OstinatoForCausalLM.__name__
