"""From ``training.objective``, ``training.head`` and ``evaluation`` to the loss, whose code computes it, the model that
ends in it, and the pass between steps.
"""

from __future__ import annotations

from memcheck.job.framework import Framework
from memcheck.job.lookup import Defaults, JobProblem, ResolutionError
from memcheck.job.types import (
    COMPARED,
    DISTILLED,
    LLAMA_FACTORY,
    MS_SWIFT,
    OPEN_INSTRUCT,
    OWN,
    PIECEWISE,
    SCORED,
    SECOND_MODELS,
    TRAINERS,
    Checkpointing,
    Companion,
    Evaluation,
    ModelHead,
    Objective,
    Recipe,
)
from memcheck.models.decoder import linear
from memcheck.models.types import NO_HEAD_LAYER, Architecture, Qwen2AudioModel, Rough, TaskHead
from memcheck.plan import types as plan_types
from memcheck.plan.types import TrainingSpec


def own_objective(
    stated: plan_types.ObjectiveSpec, name: str, reference: str, recipe: Recipe, defaults: Defaults
) -> Objective:
    """Return the objective of a framework's own recipe (torchtune), which scores every token and masks the prompt's.

    ``name``: of the objective. ``reference``: how it gets the reference's log-probabilities.
    """
    if name == "sft":
        return Objective()
    beta = 0.5
    if name in DISTILLED:
        beta = defaults.stated_or(
            "training.objective.beta", stated.beta, 0.0, "the forward divergence, as in its configs"
        )
    return Objective(name=name, beta=beta, loss_code=OWN, reference=reference, fp32_outputs=recipe.params != "fp32")


OWN_LOSSES = {
    "llama-factory": (*COMPARED, "orpo", "simpo"),
    "ms-swift": (*COMPARED, "orpo", "simpo", "cpo", "reward"),
    "open-instruct": ("dpo", "simpo"),
}
"""Trainers with losses of their own, each with the objectives whose losses have a model here."""
OWN_CODE = {
    LLAMA_FACTORY: OWN_LOSSES[LLAMA_FACTORY],
    MS_SWIFT: COMPARED,
    OPEN_INSTRUCT: OWN_LOSSES[OPEN_INSTRUCT],
}
"""Objectives whose loss each trainer computes in code of its own. For its other objectives ms-swift passes the outputs
of its forward to TRL's functions (``rlhf_mixin.py``).
"""
CHUNKS_BY_DEFAULT = (1, 7)
"""The first TRL whose supervised loss is ``chunked_nll`` by default (``sft_config.py``)."""
NARROW_CHUNKS = (1, 13)
"""The first whose chunks leave the head in the dtype of the hidden states (``sft_trainer.py``, ``_chunk``)."""
FUSED_HEAD = (1, 15)
"""The first TRL whose log-probabilities come from a fused head (``add_fused_lm_head``)."""
NEWER, OLDER = "trl-0.29", "trl-0.24"
OLDER_SINCE, NEWER_SINCE = (0, 15), (0, 29)
"""The first TRL whose DPO runs the lines of 0.24, and the first with those of 0.29."""
SHIFTED_VIEWS = {"dpo": (1, 6), "ipo": (1, 6), "kto": (1, 9)}
"""The first TRL whose trainer scores views of the logits instead of shifted copies, and takes their entropy."""
VIEWS = "trl-1.6"
FUSED = "trl-1.15"
TRL_BETA = {"gkd": 0.5, "distill": 1.0}
OF_EVERY_VERSION = ("orpo", "simpo", "cpo")
"""Objectives whose losses are the same lines in every version, from 1.15 on too (``trl/experimental``)."""


def trainer_code(
    training: plan_types.TrainingSpec,
    name: str,
    who: str,
    version: str | None,
    architecture: Architecture | Rough,
    checkpointing: Checkpointing,
    defaults: Defaults,
) -> str:
    """Name the trainer code that computes the loss, such as ``trl-0.29``; empty: the model's own forward does.

    ``name``: of the objective. ``who``, ``version``: the trainer. An unknown version is taken as the one that needs
    most memory, which is noted in ``defaults``.
    """
    key = "training.trainer.version"
    if name == "sft":
        return _supervised(training.loss, who, _numbers(version), defaults)
    if name in OWN_CODE.get(who, ()):
        return who
    if name in OF_EVERY_VERSION or name == "reward":
        return NEWER
    if name in DISTILLED:
        return _distilling(name, _numbers(version), defaults)
    numbers = _numbers(version) if who == "trl" else None
    if numbers is None:
        code = _worst(name, architecture, checkpointing)
        defaults.note(key, f"as of TRL {code.partition('-')[2]}", "unknown: the lines that need most memory")
        return code
    code = NEWER
    if numbers >= FUSED_HEAD:
        code = FUSED
    elif numbers >= SHIFTED_VIEWS.get(name, FUSED_HEAD):
        code = VIEWS
    elif name in ("dpo", "ipo") and OLDER_SINCE <= numbers < NEWER_SINCE:
        code = OLDER
    elif numbers[0] == 1 or numbers < (0, 24):
        why = "these lines differ from version to version, and keep no more than TRL 0.29's"
        defaults.note(key, "as of TRL 0.29", why)
    return code


def _supervised(loss: plan_types.LossSpec | None, who: str, numbers: tuple[int, int] | None, defaults: Defaults) -> str:
    """Name the code of TRL's SFT loss: on all logits, on chunks of tokens, or on a fused head (always since 1.15).

    ``loss``: the plan's. ``who``: the trainer. ``numbers``: TRL's version; None: not stated. Empty: no code of TRL's.
    """
    kind = loss.kind if loss is not None else None
    chunked = kind == "chunked" and loss is not None and loss.chunks is None
    if who != "trl" or not (chunked or kind in (None, "standard")):
        return ""  # with Liger's loss there are no logits whose metrics could be taken
    key = "training.trainer.version"
    fp32_chunks, narrow_chunks = PIECEWISE
    if numbers is None and chunked:
        defaults.note(key, "as of TRL 1.7", "unknown: the chunks that need most memory")
        return fp32_chunks
    if numbers is None:
        why = "unknown: whole logits; in chunks by default since 1.7, by a fused head since 1.15"
        defaults.note(key, "as of TRL 0.29", why)
        return NEWER
    if numbers >= FUSED_HEAD:
        return FUSED
    if chunked or (kind is None and numbers >= CHUNKS_BY_DEFAULT):
        return narrow_chunks if numbers >= NARROW_CHUNKS else fp32_chunks
    return NEWER


def chunks_supervised_loss(version: str | None) -> bool:
    """Whether TRL of that release can compute head and loss in chunks (``loss_type: chunked_nll``, since 1.4).

    True where the release is not stated.
    """
    numbers = _numbers(version)
    return numbers is None or numbers >= (1, 4)


def _distilling(name: str, numbers: tuple[int, int] | None, defaults: Defaults) -> str:
    """Name the TRL code of a distillation. ``name``: of the objective; ``numbers``: TRL's version, None: not stated.

    GKD before TRL 1.0 computes the logits of completions alone, and of whole rows since. The distillation trainer
    always computes its loss tile by tile.
    """
    if name == "gkd" and numbers is not None and numbers < (1, 0):
        return NEWER
    if numbers is None or numbers < FUSED_HEAD:
        defaults.note("training.trainer.version", "as of TRL 1.16", "the lines that need most memory")
    return FUSED


def _worst(name: str, architecture: Architecture | Rough, checkpointing: Checkpointing) -> str:
    """Return the lines that need most memory where the version is unknown.

    TRL 0.29 keeps at least six bytes more of every logit than TRL 0.24, which asks for the hidden states of all layers:
    those are the inputs that recomputed layers keep anyway.
    """
    if name not in ("dpo", "ipo") or checkpointing.mode == "full" or not isinstance(architecture, Architecture):
        return NEWER
    hidden_states_bytes = 2 * architecture.hidden_size * (architecture.num_layers + 1)  # per token, in 16 bits
    logits_bytes = LOGIT_BYTES_MORE * architecture.vocab_size
    return OLDER if hidden_states_bytes > logits_bytes else NEWER


LOGIT_BYTES_MORE = 6
"""Bytes of every logit that TRL 0.29 keeps and TRL 0.24 does not, at least."""


def _numbers(version: str | None) -> tuple[int, int] | None:
    """Return the major and minor number of a version; None if it is not stated or does not begin with a number."""
    if not version:
        return None
    import re

    match = re.match(r"(\d+)(?:\.(\d+))?", version)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def without_autocast(recipe: Recipe, defaults: Defaults) -> Recipe:
    """Return the precision recipe of TRL's distillation, in which both models run without autocast.

    accelerate wraps the model's forward in autocast, and the trainer calls another method of the model instead (TRL
    1.16 models/utils.py, ``_ForwardRedirection``; trainer/distillation_trainer.py, ``compute_loss``).
    """
    if not recipe.autocast:
        return recipe
    why = "TRL's distillation goes past the forward that accelerate has put autocast around"
    defaults.note("training.precision.compute", recipe.params, why)
    name = "fp32" if recipe.params == "fp32" else f"{recipe.params}-pure"
    return recipe._replace(recipe=name, autocast=False, compute=recipe.params)


DEFAULT_BATCH = 8
"""``per_device_eval_batch_size`` (transformers 5.23 ``training_args.py``), whatever the training batch is."""


def resolve_evaluation(stated: plan_types.EvaluationSpec, defaults: Defaults) -> Evaluation:
    """Return the evaluation pass that the plan states, with defaults of transformers.

    Raises:
        ResolutionError: logits of all steps are kept, and the plan does not state the number of steps.
    """
    key = "training.evaluation."
    why = "default of transformers without compute_metrics: prediction_loss_only"
    logits = defaults.stated_or(key + "logits", stated.logits, "dropped", why)
    if logits == "kept" and stated.steps is None:
        message = "training.evaluation.steps is missing: kept logits pile up over all steps of a pass"
        help = "write how many batches a pass has, or `logits: dropped`"
        raise ResolutionError((JobProblem("missing", "/training/evaluation", message, help=help),))
    size = defaults.stated_or(
        key + "micro_batch_size", stated.micro_batch_size, DEFAULT_BATCH, "default of transformers"
    )
    if stated.sequence_length is None:
        defaults.note(key + "sequence_length", "that of the training", "default")
    return Evaluation(size, stated.sequence_length or 0, stated.steps or 1, keeps_logits=logits == "kept")


BORROWED = ("trl", "axolotl")
"""Trainers whose preference losses are TRL's: Axolotl subclasses TRL's trainers (``axolotl/core/trainers``)."""


def resolve_objective(
    training: plan_types.TrainingSpec,
    method: str,
    recipe: Recipe,
    framework: Framework,
    architecture: Architecture | Rough,
    checkpointing: Checkpointing,
    defaults: Defaults,
    *,
    prepared: bool,
) -> Objective:
    """Return the objective of a training: the loss, which trainer's code computes it, and its reference.

    ``prepared``: accelerate's ``prepare_model`` casts the model's outputs to fp32, as everywhere but under FSDP2.
    Assumed values are noted in ``defaults``.
    """
    stated, trainer = training.objective, training.trainer
    if stated is None and trainer is None and training.reference is None:
        return Objective()
    stated = stated or plan_types.ObjectiveSpec()
    name = defaults.stated_or("training.objective", stated.name, "sft")
    if framework.runs_objectives_in_recipes and name in framework.objectives:
        reference = _reference(training.reference, name, method, defaults)
        return own_objective(stated, name, reference, recipe, defaults)

    usual = "transformers" if name == "sft" else "trl"
    who = defaults.stated_or("training.trainer.name", trainer.name if trainer else None, usual)
    version = trainer.version if trainer else None
    code = trainer_code(training, name, who, version, architecture, checkpointing, defaults)
    prompt = 0
    # trainers in TRAINERS score every token and mask the prompt's, so that its length does not matter
    if name in (*SCORED, *DISTILLED) and code not in TRAINERS:
        why = "the length of the prompt is unknown: every token is scored"
        prompt = defaults.stated_or("training.objective.prompt_length", stated.prompt_length, 0, why)
    beta = 0.5
    if name in DISTILLED:
        beta = defaults.stated_or("training.objective.beta", stated.beta, TRL_BETA[name], "default of TRL")
    return Objective(
        name=name,
        beta=beta,
        loss_code=code,
        prompt_tokens=prompt,
        reference=_reference(training.reference, name, method, defaults, cached=code == OPEN_INSTRUCT),
        fp32_outputs=framework.copies_outputs_to_fp32 and recipe.recipe.endswith("-mixed") and prepared,
    )


def _reference(stated: str | None, name: str, method: str, defaults: Defaults, *, cached: bool = False) -> str:
    """Return how a preference loss gets the reference's log-probabilities; ``none`` for an objective without one.

    ``stated``: the plan's ``training.reference``. ``name``: of the objective. ``cached``: the trainer scores all pairs
    before the training (open-instruct).
    """
    if name not in COMPARED:
        return "none"
    if cached:
        why = "open-instruct scores all pairs once, before it trains"
        return defaults.stated_or("training.reference", stated, "precomputed", why)
    if method != "full":
        why = "the reference is the model without its adapters"
        return defaults.stated_or("training.reference", stated, "adapter-off", why)
    return defaults.stated_or("training.reference", stated, "resident", "the reference is a second copy of the model")


def resolve_companions(
    objective: Objective,
    architecture: Architecture | Rough,
    recipe: Recipe,
    parameter_offload: str,
    teacher: Architecture | Rough | None,
) -> tuple[Companion, ...]:
    """Return the models that a step needs in addition to the trained one: a teacher, or a second copy as the reference.

    ``teacher``: of a distillation. A reference has the dtype of the trained model. FSDP2's CPU offload
    (``parameter_offload``) applies to both models.
    """
    if objective.name in DISTILLED and isinstance(teacher, Architecture):
        device = "host" if objective.loss_code == OWN and parameter_offload != "none" else "device"
        return (Companion(role="teacher", architecture=teacher, parameters_place=device, dtype=recipe.params),)
    if objective.reference not in SECOND_MODELS or not isinstance(architecture, Architecture):
        return ()
    host = objective.reference == "host" or parameter_offload != "none"
    # LLaMA-Factory upcasts what it trains; a reference stays as its checkpoint is, in 16 bits (model/loader.py)
    narrow = objective.loss_code == LLAMA_FACTORY and recipe.compute in ("bf16", "fp16")
    dtype = recipe.compute if narrow else recipe.params
    return (
        Companion(
            role="reference", architecture=architecture, parameters_place="host" if host else "device", dtype=dtype
        ),
    )


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
    kind = defaults.stated_or("training.head.kind", stated.kind, "reward" if objective == "reward" else "lm", why)
    labels = 0
    if kind == "reward":
        labels = defaults.stated_or("training.head.labels", stated.labels, 1, why)
    elif kind in ("classification", "token-classification"):
        labels = defaults.stated_or("training.head.labels", stated.labels, DEFAULT_LABELS, "default of transformers")
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
    dropout = CLASSIFIER_DROPOUT if by_token else 0.0
    task = TaskHead(kind, head.labels, bias=by_token, dropout=dropout, unused=())
    if pooling is not None and known:
        inside = None if by_token and kind not in pooling.also_in else pooling
        task = TaskHead(kind, head.labels, bias=True, dropout=pooling.dropout, unused=(), pooling=inside)
    elif pooling is not None and "embedding" in pooling.also_in:  # AutoModel's add_pooling_layer
        wide = architecture.hidden_size
        task = TaskHead(
            kind,
            labels=0,
            bias=False,
            dropout=0.0,
            unused=linear("pooler.dense", wide, wide, "head", "none", bias=True),
        )
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
