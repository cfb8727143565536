"""Which of an encoder's two classes for words the estimate of a plan assumes.

From ``training.head`` to the model that ends in it.
"""

from __future__ import annotations

from memcheck.job.defaults import Defaults, JobProblem, ResolutionError
from memcheck.job.types import ModelHead
from memcheck.models.parts.modules import linear
from memcheck.models.types import NO_HEAD_LAYER, Architecture, Qwen2AudioModel, Rough, TaskHead
from memcheck.plan import types as plan_types
from memcheck.plan.types import TrainingSpec

MASKED_WORDS = "the class for masked words; loss.upcast: true is that for causal language, with wider logits"
"""An encoder's type names several classes, and its file often none."""


def note_class(training: TrainingSpec, architecture: Architecture, defaults: Defaults) -> None:
    """Note that the class is the one for masked words, if another one exists: not with a decoder or a copied loss."""
    stated = training.loss is not None and training.loss.upcast is not None
    if not stated and architecture.encoder is None and not isinstance(architecture, Qwen2AudioModel):
        defaults.note("training.head.kind", "lm", MASKED_WORDS)


CLASSIFIER_DROPOUT = 0.1
"""transformers ``modeling_layers.py``, GenericForTokenClassification, where the configuration states none."""
DEFAULT_LABELS = 2
"""``num_labels`` of a configuration that states none (transformers ``configuration_utils.py``)."""


def resolve_head(
    training: plan_types.TrainingSpec, architecture: Architecture | Rough, defaults: Defaults
) -> ModelHead:
    """Resolve ``training.head``: kind and number of labels, by the plan, its objective or transformers' defaults.

    Values that the plan does not state are noted in ``defaults``.
    """
    stated = training.head
    objective = training.objective.name if training.objective else None
    if stated is None and objective != "reward":
        if isinstance(architecture, Architecture) and not architecture.logit_casts.in_loss:
            note_class(training, architecture, defaults)
        return ModelHead()
    stated = stated or plan_types.HeadSpec()
    why = "a reward is one number a sequence"
    kind = defaults.take("training.head.kind", stated.kind, "reward" if objective == "reward" else "lm", why)
    labels = 0
    if kind == "reward":
        labels = defaults.take("training.head.labels", stated.labels, 1, why)
    elif kind in ("classification", "token-classification"):
        labels = defaults.take("training.head.labels", stated.labels, DEFAULT_LABELS, "default of transformers")
    if kind == "token-classification":
        defaults.note("training.head", f"dropout {CLASSIFIER_DROPOUT}", "default of transformers for this head")
    if kind == "embedding":
        defaults.note("training.head", "two columns, mean pooling", "pairs of texts, compared within the batch")
    return ModelHead(kind, labels)


def with_head(architecture: Architecture | Rough, head: ModelHead) -> Architecture | Rough:
    """Return the model with its head (transformers ``GenericForSequenceClassification``,
    ``...TokenClassification``).
    """
    if head.kind == "lm" or not isinstance(architecture, Architecture):
        return architecture
    by_token = head.kind == "token-classification"
    pooling = architecture.pooling
    known = pooling is not None and (by_token or head.kind == "classification")
    if architecture.head_layer.activation and head.kind != "embedding" and not known:
        message = f"memcheck has no model of a {head.kind} head on {architecture.model_type}, which pools by itself"
        help = "`head: {kind: lm}` prices its head for masked words, `head: {kind: embedding}` its hidden states"
        raise ResolutionError((JobProblem("architecture", "/training/head", message, help=help),))
    kind = "classification" if head.kind == "reward" else head.kind
    task = TaskHead(kind, head.labels, bias=by_token, dropout=CLASSIFIER_DROPOUT if by_token else 0.0)
    if pooling is not None and known:
        inside = None if by_token and not pooling.by_token else pooling
        task = TaskHead(kind, head.labels, bias=True, dropout=pooling.dropout, pooling=inside)
    elif pooling is not None and pooling.in_body:  # AutoModel's add_pooling_layer
        wide = architecture.hidden_size
        task = TaskHead(kind, idle=linear("pooler.dense", wide, wide, "head", "none", bias=True))
    return architecture._replace(
        task=task,
        head=False,
        head_bias=False,
        tie_word_embeddings=False,
        final_softcap=False,
        logit_scale=False,
        head_layer=NO_HEAD_LAYER,
        logit_casts=architecture.logit_casts._replace(in_loss=True),
    )
