"""From ``training`` to a job whose batch is one token: what plans that differ in their batch alone have in common."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.autograd.weight_formats import WeightFormat
from memcheck.catalog.names import Gpu
from memcheck.job.framework import Framework
from memcheck.job.layout import parameter_offload, resolve_layout
from memcheck.job.lookup import Defaults
from memcheck.job.objective import (
    resolve_companions,
    resolve_evaluation,
    resolve_head,
    resolve_objective,
    with_head,
    without_autocast,
)
from memcheck.job.recipe import resolve_recipe, with_optimizer
from memcheck.job.training import (
    resolve_checkpoint,
    resolve_checkpointing,
    resolve_initialization,
    resolve_loss,
    resolve_optimizer,
    resolve_rows,
    resolve_target,
)
from memcheck.job.types import (
    LIGER_KERNELS,
    Assumption,
    Evaluation,
    Images,
    InferenceJob,
    Layout,
    Lora,
    Optimizer,
    Overhead,
    Recipe,
    TrainingJob,
)
from memcheck.job.versions import (
    note_adapter_units,
    reduces_each,
    resolve_carving,
    resolve_expandable,
    resolve_fsdp,
    resolve_kbit,
)
from memcheck.models.types import Architecture, Moe, Rough
from memcheck.plan import types as plan_types
from memcheck.record import Record

NO_KERNELS = plan_types.KernelsSpec()


class NotesByPart(Record):
    """The assumptions of a plan, cut where those of its batch come in between."""

    before_batch: tuple[Assumption, ...] = ()
    """Before the micro-batch size and the sequence length."""
    before_steps: tuple[Assumption, ...] = ()
    """Then, before the number of micro-batches."""
    before_torch: tuple[Assumption, ...] = ()
    """Then, before PyTorch's behaviour."""
    policy: tuple[Assumption, ...] = ()
    """Last."""


class JobFrame(Record):
    """A plan made concrete but for its batch: plans that differ in their batch alone share it.

    The batch is what :func:`with_batch` reads: sequences, tokens and micro-batches.
    """

    job: TrainingJob | InferenceJob
    """If it trains, on one token."""
    gpu: Gpu
    overhead: Overhead
    framework: Framework | None
    """None for inference."""
    notes: NotesByPart


class Ledgers(Record):
    """Where the assumptions of a training are noted; a report lists the four in this order."""

    layout: Defaults
    """Assumptions of the layout and the method; the batch's come after them."""
    model: Defaults
    """Assumptions of how the model is stored, trained and scored; the number of micro-batches comes after them."""
    step: Defaults
    """Assumptions of what a step runs, and of what is loaded and saved."""
    releases: Defaults
    """Assumptions of releases that the plan does not state, such as FSDP's; PyTorch's comes after them."""


class TrainingInputs(Record):
    """What every part of a training is resolved from."""

    plan: plan_types.Plan
    training: plan_types.TrainingSpec
    """The plan's section ``training``."""
    framework: Framework
    options: dict[str, object]
    """The options of the plan that the framework has."""
    ledgers: Ledgers


class StoredModel(Record):
    """In which dtypes and units the trained model is stored, and its adapters."""

    recipe: Recipe
    loaded_params: str
    """Dtype in which models are loaded; trained weights may be cast to fp32 later."""
    optimizer: Optimizer
    base_format: WeightFormat | None
    """Format of a quantised frozen base; None: there is none."""
    unread_share: float
    """By which share of live bytes a step may need more than estimated (:func:`unread_share_of`)."""
    fsdp_version: int
    """Version of FSDP, 1 or 2; 2 also for a job without FSDP."""
    upcasts_before_sharding: bool
    """Trained parameters are cast to fp32 before FSDP shards them."""
    lora: Lora | None


def training_frame(
    inputs: TrainingInputs, read_model: Architecture | Rough, gpu: Gpu, teacher: Architecture | Rough | None
) -> JobFrame:
    """Return the frame of a training, whose job has a batch of one token; its overhead is set by the caller.

    The batch is set later by :func:`with_batch`. ``read_model``: as its configuration was read, before the training's
    head is put on it. ``teacher``: the model of a distillation. Assumptions are noted in the ledgers of ``inputs``.
    """
    training, framework, ledgers = inputs.training, inputs.framework, inputs.ledgers
    layout = _training_layout(inputs, read_model)
    method = ledgers.layout.stated_or("training.method", training.method, "full")
    _note_unstated_options(inputs, layout)
    stored = _stored_model(inputs, read_model, layout, method)
    checkpointing = resolve_checkpointing(
        training.activation_checkpointing, training.framework_version, framework, inputs.options, ledgers.step
    )
    wrapped_by_fsdp2 = layout.zero_stage >= 2 and stored.fsdp_version == 2
    objective = resolve_objective(
        training,
        method,
        stored.recipe,
        framework,
        read_model,
        checkpointing,
        ledgers.model,
        prepared=not wrapped_by_fsdp2,
    )
    recipe = stored.recipe
    if objective.loss_from_hidden_states and objective.name == "distill":
        recipe = without_autocast(recipe, ledgers.model)
    offloaded = parameter_offload(training.offload and training.offload.parameters, inputs.options, ledgers.model)
    head = resolve_head(training, read_model, ledgers.model)
    architecture = _with_stated_upcast(with_head(read_model, head), training.loss)
    kernels = training.kernels or NO_KERNELS
    job = TrainingJob(
        architecture=architecture,
        framework=framework,
        framework_version=training.framework_version,
        layout=layout,
        recipe=with_optimizer(recipe, stored.optimizer, framework),
        optimizer=stored.optimizer,
        micro_batch_size=1,
        sequence_length=1,
        gradient_accumulation_steps=1,
        method=method,
        base_format=stored.base_format,
        unread_share=stored.unread_share,
        lora=stored.lora,
        freeze=training.freeze or (),
        checkpointing=checkpointing,
        compile=bool(training.compile),
        parameter_offload=offloaded,
        options=tuple(inputs.options.items()),
        hooks_embedding=stored.lora is not None and framework.trainer_package(training.trainer).hooks_embedding,
        fsdp_version=stored.fsdp_version,
        groups_embedding_and_head=resolve_carving(
            training, stored.fsdp_version, inputs.options, layout, framework, ledgers.releases
        ),
        upcasts_before_sharding=stored.upcasts_before_sharding,
        objective=objective,
        head=head,
        auxiliary_models=resolve_companions(
            objective, architecture, recipe._replace(params=stored.loaded_params), offloaded, teacher
        ),
        ssm_kernels=kernels.ssm or "fused",
        liger=_liger(kernels.liger),
    )
    job = _with_rows(inputs, _with_load_and_save(inputs, _with_step(inputs, job)))
    notes = NotesByPart(
        before_batch=ledgers.layout.assumptions(),
        before_steps=ledgers.model.assumptions(),
        before_torch=(*ledgers.step.assumptions(), *ledgers.releases.assumptions()),
    )
    return JobFrame(job=job, gpu=gpu, overhead=Overhead(), framework=framework, notes=notes)


def _training_layout(inputs: TrainingInputs, architecture: Architecture | Rough) -> Layout:
    """Return how the model is divided over the GPUs, with the layers of uneven pipeline stages."""
    framework, options, defaults = inputs.framework, inputs.options, inputs.ledgers.layout
    layout = resolve_layout(
        inputs.plan.hardware,
        inputs.plan.parallelism,
        framework,
        defaults,
        routed=_routed(architecture),
        options=options,
        reduces_each=reduces_each(inputs.training, options, framework),
    )
    if layout.pipeline == 1:
        return layout
    return layout._replace(fewer_layers=framework.fewer_layers(options, defaults))


def _routed(architecture: Architecture | Rough) -> bool:
    """Say whether the model has routed experts."""
    return isinstance(architecture, Architecture) and any(isinstance(b.mlp, Moe) for b, _ in architecture.blocks)


def _stored_model(
    inputs: TrainingInputs, architecture: Architecture | Rough, layout: Layout, method: str
) -> StoredModel:
    """Return the dtypes, the optimizer, the version of FSDP and the adapters of a training.

    ``method``: ``full``, ``lora`` or ``qlora``. A full training loads no module for frozen bases and adapters.
    """
    plan, training, framework, options, ledgers = inputs
    base_format, precision, unread_share = None, training.precision, 0.0
    if training.base is not None or method == "qlora":
        from memcheck.job.adapters import base_of, unread_share_of, with_base

        base_format = base_of(training, architecture, method, framework, options, ledgers.step)
        unread_share = unread_share_of(training, base_format, plan.model.name or "", framework, ledgers.step)
        precision = with_base(training.precision, training.base)
    recipe = resolve_recipe(
        precision, method, layout, framework, ledgers.model, training.trainer, frozen=training.freeze
    )
    optimizer = resolve_optimizer(training.optimizer, framework, ledgers.model)
    fsdp = resolve_fsdp(training.framework_version, options, layout, framework, ledgers.releases)
    if method != "full":
        note_adapter_units(training, fsdp, options, layout, framework, ledgers.releases)
    framework.note_releases(training.framework_version, options, recipe, ledgers.releases)
    upcast = framework.upcasts(recipe, layout, fsdp, base_format)
    lora = None
    if method != "full":
        from memcheck.job.adapters import resolve_lora

        lora = resolve_lora(training, framework, recipe, architecture, ledgers.step, upcast=upcast)
    return StoredModel(
        recipe=recipe,
        loaded_params=(precision and precision.params) or recipe.params,
        optimizer=optimizer,
        base_format=base_format,
        unread_share=unread_share,
        fsdp_version=fsdp,
        upcasts_before_sharding=upcast,
        lora=lora,
    )


def _with_stated_upcast(architecture: Architecture | Rough, stated: plan_types.LossSpec | None) -> Architecture | Rough:
    """Return the model with a loss that casts logits to fp32, if the plan states ``loss.upcast: true``.

    A class whose own loss takes logits as they are then has a loss of the training loop's, or is the class for causal
    language.
    """
    casts = stated is not None and bool(stated.upcast)
    if not casts or not isinstance(architecture, Architecture) or architecture.logit_casts.in_loss:
        return architecture
    return architecture._replace(logit_casts=architecture.logit_casts._replace(in_loss=True))


def _liger(stated: bool | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names of the Liger kernels that a plan states, in a fixed order; ``true`` means all."""
    if isinstance(stated, tuple):
        return tuple(name for name in LIGER_KERNELS if name in stated)
    return LIGER_KERNELS if stated else ()


def _with_step(inputs: TrainingInputs, job: TrainingJob) -> TrainingJob:
    """Return the job with attention, pictures and labels of a sample, its loss, and the allocator's setting."""
    training, framework, defaults = inputs.training, inputs.framework, inputs.ledgers.step
    architecture = job.architecture
    attention = _attention(training.attention, architecture, framework, defaults)
    images = _images(training, architecture, framework, inputs.options, defaults)
    target_length = _target(training, architecture, defaults)
    stated_loss = training.loss
    if job.objective.loss_in_model and stated_loss is not None:
        stated_loss = stated_loss._replace(kind="standard")
    loss = resolve_loss(
        stated_loss,
        job.layout,
        framework,
        defaults,
        training.framework_version,
        job.objective.usual_loss,
        class_keeps_dtype=isinstance(architecture, Architecture) and not architecture.logit_casts.in_loss,
    )
    clips = defaults.stated_or(
        "training.clip_grad_norm", training.clip_grad_norm, framework.clip_grad_norm, f"default of {framework.name}"
    )
    return job._replace(
        attention=attention,
        images=images,
        target_length=target_length,
        loss=loss,
        clip_grad_norm=clips,
        expert_imbalance=_imbalance(training, job.layout.expert, defaults),
        expandable_segments=resolve_expandable(training, framework, defaults),
    )


def _with_load_and_save(inputs: TrainingInputs, job: TrainingJob) -> TrainingJob:
    """Return the job with what happens outside its steps: how the model is loaded, evaluated and saved."""
    plan, training, framework, options, ledgers = inputs
    initialization = resolve_initialization(
        training.initialization,
        job.layout,
        job.base_format,
        framework,
        ledgers.step,
        version=training.framework_version,
        model=plan.model.name or "",
    )
    return job._replace(
        initialization=initialization,
        checkpoint=resolve_checkpoint(training.checkpoint, job.layout, framework, options, ledgers.step),
        prepares_kbit=resolve_kbit(job.base_format, options, job.layout, framework, training.trainer, ledgers.step),
        evaluation=_evaluation(training.evaluation, ledgers.step),
    )


def _with_rows(inputs: TrainingInputs, job: TrainingJob) -> TrainingJob:
    """Return the job with how texts fill its rows; a model whose samples have no pictures is one of text alone."""
    rows = resolve_rows(
        inputs.training, job.architecture, inputs.framework, job.attention, job.layout, inputs.ledgers.step
    )
    job = job._replace(sequences=rows.sequences, may_pad=rows.may_pad)
    if job.images is None or job.images.patches_per_sample or not isinstance(job.architecture, Architecture):
        return job
    from memcheck.models.variants import without_pictures

    return job._replace(architecture=without_pictures(job.architecture))


def _note_unstated_options(inputs: TrainingInputs, layout: Layout) -> None:
    """Note the values of options that the plan leaves out and that decide its memory."""
    _, training, framework, options, ledgers = inputs
    defaults = ledgers.model
    why = f"default of {framework.name}"
    if training.compile and _unstated("components", framework, options):
        defaults.note("training.options.components", ["model", "loss"], f"{why} since April 2025")
    if layout.expert > 1 and _unstated("dispatcher", framework, options):
        defaults.note("training.options.dispatcher", "torch", "every token is gathered on every rank of its experts")
    if options.get("quantizer") and _unstated("groupsize", framework, options):
        defaults.note("training.options.groupsize", 256, why)
    if _offloads(training) and _unstated("pin_memory", framework, options):
        defaults.note("training.options.pin_memory", True, why)


def _unstated(name: str, framework: Framework, options: Mapping[str, object]) -> bool:
    """Whether the framework has an option that the plan does not state."""
    return name in framework.options and name not in options


def _offloads(training: plan_types.TrainingSpec) -> bool:
    """Say whether the plan offloads optimizer states or parameters to the host or to NVMe."""
    optimizer, offload = training.optimizer, training.offload
    places = [optimizer.offload if optimizer is not None else None, offload.parameters if offload is not None else None]
    return any(place not in (None, "none") for place in places)


def _images(
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    framework: Framework,
    options: dict[str, object],
    defaults: Defaults,
) -> Images | None:
    """Return the images of one sample; None: there are none. A plan of a text model loads no module for them."""
    is_text_model = isinstance(architecture, Rough) or (architecture.vision is None and not architecture.others)
    if training.images is None and is_text_model:
        return None
    from memcheck.job.images import resolve_pictures

    return resolve_pictures(training, architecture, framework, options, defaults)


def _attention(stated: str | None, architecture: Architecture | Rough, framework: Framework, defaults: Defaults) -> str:
    """Return the attention implementation: the plan's or the framework's default, ``eager`` if the class lacks it.

    ``stated``: the plan's ``training.attention``. Assumptions are noted in ``defaults``.
    """
    wanted = stated or framework.default_attention
    model_type = architecture.model_type if isinstance(architecture, Architecture) else ""
    if wanted in framework.missing_attentions.get(model_type, ()):
        defaults.note("training.attention", "eager", f"the class of {model_type} in transformers has no {wanted}")
        return "eager"
    return defaults.stated_or("training.attention", stated, framework.default_attention)


def _target(training: plan_types.TrainingSpec, architecture: Architecture | Rough, defaults: Defaults) -> int:
    """Return the tokens of the labels as the plan states them; 0 for a decoder, which imports no module for them."""
    if training.target_length is None and (not isinstance(architecture, Architecture) or architecture.encoder is None):
        return 0
    return resolve_target(training, architecture, defaults)


def _imbalance(training: plan_types.TrainingSpec, expert: int, defaults: Defaults) -> float:
    """Return the routed tokens of the busiest rank over those of the mean rank; assumed even if not stated.

    ``expert``: degree of expert parallelism; one rank has all tokens, and nothing is noted.
    """
    if expert == 1:
        return training.expert_imbalance or 1.0
    return defaults.stated_or("training.expert_imbalance", training.expert_imbalance, 1.0, "perfectly balanced routing")


def _evaluation(stated: plan_types.EvaluationSpec | None, defaults: Defaults) -> Evaluation | None:
    """Return the evaluation pass that the plan states; None: there is none."""
    if stated is None:
        return None
    return resolve_evaluation(stated, defaults)
