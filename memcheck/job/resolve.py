"""From ``inference:`` to a job.

From a plan to a job: every value concrete, every default written down.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.job.framework import Framework
from memcheck.job.layout import parameter_offload, resolve_layout
from memcheck.job.lookup import Defaults, JobProblem, ResolutionError, resolve_gpu, resolve_model, resolve_teacher
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
    check_length,
    fused_packages,
    known_options,
    resolve_accumulation,
    resolve_batch,
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
    resolve_torch,
)
from memcheck.models.types import Architecture, Mixer, Moe, Rough
from memcheck.plan import types as plan_types
from memcheck.record import Record

FIELDS_OF_ENGINES = plan_types.InferenceSpec._fields[5:]
"""Keys of ``inference`` that follow those of a plan without a serving engine."""


def inference_job(
    plan: plan_types.Plan,
    inference: plan_types.InferenceSpec,
    architecture: Architecture | Rough,
    gpu: Gpu,
    defaults: Defaults,
) -> InferenceJob:
    """Return the inference job of a plan: one server of the model with its KV cache.

    Raises:
        ResolutionError: the plan states no context, or keys that exclude each other.
    """
    states_engine_keys = any(getattr(inference, key) is not None for key in FIELDS_OF_ENGINES)
    if inference.engine is not None or states_engine_keys:
        from memcheck.job.engine import stray_keys

        problems = stray_keys(inference, plan.parallelism)
        if problems:
            raise ResolutionError(problems)
    if inference.engine is not None:
        return _engine_job(plan, inference, architecture, gpu, defaults)
    if inference.context_length is None:
        problem = JobProblem(
            "missing",
            "/inference",
            "inference.context_length is missing: the KV cache is proportional to it",
            help="write the number of tokens per sequence, e.g. `context_length: 32768`",
        )
        raise ResolutionError((problem,))
    return InferenceJob(
        architecture=architecture,
        layout=resolve_layout(plan.hardware, plan.parallelism, None, defaults),
        batch_size=defaults.stated_or("inference.batch_size", inference.batch_size, 1),
        context_length=inference.context_length,
        weights=defaults.stated_or("inference.weights", inference.weights, "bf16"),
        kv_cache=defaults.stated_or("inference.kv_cache", inference.kv_cache, "bf16"),
        chunk=defaults.stated_or("inference.chunk", inference.chunk, CHUNK, "engines read longer prompts in chunks"),
    )


def _engine_job(
    plan: plan_types.Plan,
    inference: plan_types.InferenceSpec,
    architecture: Architecture | Rough,
    gpu: Gpu,
    defaults: Defaults,
) -> InferenceJob:
    """Return the job of a plan with a serving engine, which must have room for one request of the longest length.

    ``inference``: the plan's section. Assumed values are noted in ``defaults``.
    """
    from memcheck.job.engine import resolve_engine

    degrees = plan_types.ParallelismSpec(tensor=inference.tensor, pipeline=inference.pipeline)
    layout = resolve_layout(plan.hardware, degrees, None, defaults)
    if layout.nodes > 1 and layout.tensor * layout.pipeline > layout.gpus_per_node:
        raise UnsupportedError(
            "memcheck has no model of one vLLM server over several nodes",
            "size a server that one node holds, or size the model without an engine",
            "/hardware/nodes",
        )
    settings = resolve_engine(inference, architecture, gpu, layout.world_size, defaults)
    kv_cache = "fp32" if settings.weights == "fp32" else "bf16"
    if settings.kv_cache == "fp8":
        kv_cache = "fp8"
    return InferenceJob(
        architecture=architecture,
        layout=layout,
        batch_size=1,
        context_length=settings.length or settings.longest,
        weights=settings.weights,
        kv_cache=kv_cache,
        chunk=settings.batched_tokens,
        engine=settings,
    )


CHUNK = 8192


DEFAULT_FRAMEWORK = "huggingface"
NO_KERNELS = plan_types.KernelsSpec()


class Resolved(Record):
    """What the memory engine needs, and what was assumed on the way."""

    job: TrainingJob | InferenceJob
    gpu: Gpu
    overhead: Overhead
    assumptions: tuple[Assumption, ...]


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


def resolve(plan: plan_types.Plan, frameworks: Mapping[str, Framework], *, base_dir: str) -> Resolved:
    """Make every value of the plan concrete. ``base_dir`` is where relative paths of the plan start.

    ``frameworks``: profiles by the name that a plan gives them.

    A layout that cannot work is still resolved, to the nearest job that can be estimated, so that the rules can report
    all of its problems.

    Raises:
        ResolutionError: an unknown model or GPU, a model that cannot be read, or a missing value without a default.
    """
    return with_batch(framed(plan, frameworks, base_dir=base_dir), plan.training)


def framed(
    plan: plan_types.Plan,
    frameworks: Mapping[str, Framework],
    *,
    base_dir: str,
    model: Architecture | Rough | None = None,
) -> JobFrame:
    """Resolve a plan to a job without its batch: every value is stated or assumed, and assumptions are noted.

    ``frameworks``: by name. ``base_dir``: of paths in the plan. ``model``: the plan's model, if it has been read
    before.

    Raises:
        ResolutionError: the model or the GPU is unknown, a value is missing, or values exclude each other.
    """
    problems: list[JobProblem] = []
    architecture, gpu = _lookup(plan, base_dir, problems, model)
    if plan.training is None and plan.inference is None:
        message = "the plan states neither training nor inference"
        problems.append(JobProblem("missing", "", message, help="add a `training:` section"))
    if problems or architecture is None or gpu is None:
        raise ResolutionError(tuple(problems))
    if isinstance(architecture, Architecture):
        _check_owner(plan, architecture, frameworks)
    defaults = Defaults()
    if isinstance(architecture, Architecture):
        for note in architecture.notes:
            defaults.note("model", note, "how the model's configuration was read")
    if plan.training is None:
        serving = inference_job(plan, plan.inference or plan_types.InferenceSpec(), architecture, gpu, defaults)
        overhead = _overhead(plan.policy, defaults)
        notes = NotesByPart(before_batch=defaults.assumptions())
        return JobFrame(job=serving, gpu=gpu, overhead=overhead, framework=None, notes=notes)
    framework = _framework_of(plan.training, architecture, frameworks, defaults)
    if isinstance(architecture, Architecture):
        architecture = framework.built(architecture)
    teacher = None
    if plan.training.teacher is not None:
        teacher = resolve_teacher(plan.training.teacher, base_dir)
    frame = _training_frame(plan, plan.training, architecture, framework, gpu, defaults, teacher)
    policy = Defaults()
    overhead = _overhead(plan.policy, policy)
    return frame._replace(overhead=overhead, notes=frame.notes._replace(policy=policy.assumptions()))


def _framework_of(
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    frameworks: Mapping[str, Framework],
    defaults: Defaults,
) -> Framework:
    """Return the framework of a training, or the trainer's own profile where it replaces much of the model.

    What is assumed of the kernels of recurrent layers is noted in ``defaults`` first.
    """
    if _recurs(architecture) and (training.kernels or NO_KERNELS).ssm is None:
        for package in fused_packages(architecture):
            why = f"recurrent layers run in its fused kernels; without {package} they take more than twice as much"
            defaults.note("model", f"{package} is installed", why)
    framework = frameworks[defaults.stated_or("training.framework", training.framework, DEFAULT_FRAMEWORK)]
    trainer = training.trainer
    if trainer is not None and trainer.name in framework.variants:
        return frameworks[trainer.name].of_release(trainer.version, training.framework_version, architecture)
    return framework


def with_batch(frame: JobFrame, training: plan_types.TrainingSpec | None) -> Resolved:
    """Return the job of a frame with the batch that the plan's ``training`` states, and all assumptions in order.

    ``frame``: the resolved plan without its batch (:func:`framed`).

    Raises:
        ResolutionError: the plan states no sequence length.
    """
    job, framework, notes = frame.job, frame.framework, frame.notes
    if training is None or framework is None or isinstance(job, InferenceJob):
        return Resolved(job=job, gpu=frame.gpu, overhead=frame.overhead, assumptions=notes.before_batch)
    batch_notes, step_notes, torch_notes = Defaults(), Defaults(), Defaults()
    batch = resolve_batch(training, batch_notes)
    if isinstance(job.architecture, Architecture) and job.architecture.encoder is not None:
        check_length(job.architecture, batch.tokens)
    job = job._replace(
        micro_batch_size=batch.sequences,
        sequence_length=batch.tokens,
        gradient_accumulation_steps=resolve_accumulation(training, job.layout, batch.sequences, step_notes),
    )
    behaviours = resolve_torch(training, job, framework, torch_notes)
    if behaviours != job.torch:
        job = job._replace(torch=behaviours)
    assumptions = (
        *notes.before_batch,
        *batch_notes.assumptions(),
        *notes.before_steps,
        *step_notes.assumptions(),
        *notes.before_torch,
        *torch_notes.assumptions(),
        *notes.policy,
    )
    return Resolved(job=job, gpu=frame.gpu, overhead=frame.overhead, assumptions=assumptions)


def _lookup(
    plan: plan_types.Plan, base_dir: str, problems: list[JobProblem], model: Architecture | Rough | None
) -> tuple[Architecture | Rough | None, Gpu | None]:
    """Return the plan's architecture and GPU, each None if unknown; errors are appended to ``problems``.

    ``model``: the architecture, if it has been read before. ``base_dir``: of paths in the plan.
    """
    architecture, gpu = model, None
    try:
        architecture = model or resolve_model(plan.model, base_dir=base_dir)
    except ResolutionError as error:
        problems.extend(error.problems)
    try:
        gpu = resolve_gpu(plan.hardware.gpu)
    except ResolutionError as error:
        problems.extend(error.problems)
    return architecture, gpu


def _check_owner(plan: plan_types.Plan, architecture: Architecture, frameworks: Mapping[str, Framework]) -> None:
    """Raise an error if the model is another framework's own, such as one that Megatron-LM's arguments describe."""
    kind = architecture.model_type
    framework = None if plan.training is None else plan.training.framework or DEFAULT_FRAMEWORK
    if kind in frameworks[framework or DEFAULT_FRAMEWORK].families.names:
        return  # the plan's own framework builds this model: the other profiles need not be loaded
    owner = next((each.name for each in frameworks.values() if kind in each.families.own), None)
    if owner is None or framework == owner:
        return
    who = f"{framework} does not run" if framework else "no serving engine runs"
    message = f"`model_type: {kind}` is {owner}'s own model, which {who}"
    other = "describe the model by a Hugging Face config.json"
    help = f"write `framework: {owner}`, or {other}" if framework else f"name a model of the catalog, or {other}"
    raise ResolutionError((JobProblem("architecture", "/model/architecture/model_type", message, help=help),))


def _recurs(architecture: Architecture | Rough) -> bool:
    """Say whether the model has a recurrent layer (a state-space mixer, linear attention, ...)."""
    return isinstance(architecture, Architecture) and any(
        isinstance(mixer, Mixer) for block, _ in architecture.blocks for mixer in (block.mixer, block.second_mixer)
    )


def _liger(stated: bool | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names of the Liger kernels that a plan states, in a fixed order; ``true`` means all."""
    if isinstance(stated, tuple):
        return tuple(name for name in LIGER_KERNELS if name in stated)
    return LIGER_KERNELS if stated else ()


def _routed(architecture: Architecture | Rough) -> bool:
    """Say whether the model has routed experts."""
    return isinstance(architecture, Architecture) and any(isinstance(b.mlp, Moe) for b, _ in architecture.blocks)


def _training_frame(
    plan: plan_types.Plan,
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    framework: Framework,
    gpu: Gpu,
    defaults: Defaults,
    teacher: Architecture | Rough | None,
) -> JobFrame:
    """Return the frame of a training, whose job has a batch of one token; its overhead is set by the caller.

    The batch is set later by :func:`with_batch`. Assumptions are noted in ``defaults``, the first part of the frame's
    notes, and in ledgers for the later parts. ``teacher``: the model of a distillation.
    """
    options = known_options(training.options, framework)
    layout = resolve_layout(
        plan.hardware, plan.parallelism, framework, defaults, routed=_routed(architecture), options=options,
        reduces_each=reduces_each(training, options, framework),
    )  # fmt: skip
    if layout.pipeline > 1:
        layout = layout._replace(fewer_layers=framework.fewer_layers(options, defaults))
    method = defaults.stated_or("training.method", training.method, "full")
    between, after, wrapper = Defaults(), Defaults(), Defaults()
    _note_unstated_options(training, layout, framework, options, between)
    base_format, precision, unread_share = "", training.precision, 0.0
    if training.base is not None or method == "qlora":
        from memcheck.job.adapters import base_of, unread_share_of, with_base

        base_format = base_of(training, architecture, method, framework, options, after)
        unread_share = unread_share_of(training, base_format, plan.model.name or "", framework, after)
        precision = with_base(training.precision, training.base)
    recipe = resolve_recipe(precision, method, layout, framework, between, training.trainer, frozen=training.freeze)
    optimizer = resolve_optimizer(training.optimizer, framework, between)
    fsdp = resolve_fsdp(training.framework_version, options, layout, framework, wrapper)
    if method != "full":
        note_adapter_units(training, fsdp, options, layout, framework, wrapper)
    framework.note_releases(training.framework_version, options, recipe, wrapper)
    upcast = framework.upcasts(recipe, layout, fsdp, base_format)
    lora = None
    if method != "full":
        from memcheck.job.adapters import resolve_lora

        lora = resolve_lora(training, framework, recipe, architecture, after, upcast=upcast)
    checkpointing = resolve_checkpointing(
        training.activation_checkpointing, training.framework_version, framework, options, after
    )
    wrapped_by_fsdp2 = layout.zero_stage >= 2 and fsdp == 2
    objective = resolve_objective(
        training, method, recipe, framework, architecture, checkpointing, between, prepared=not wrapped_by_fsdp2
    )
    if objective.loss_from_hidden_states and objective.name == "distill":
        recipe = without_autocast(recipe, between)
    offloaded = parameter_offload(training.offload and training.offload.parameters, options, between)
    head = resolve_head(training, architecture, between)
    architecture = with_head(architecture, head)
    stated_loss = training.loss
    class_keeps_dtype = isinstance(architecture, Architecture) and not architecture.logit_casts.in_loss
    if isinstance(architecture, Architecture) and class_keeps_dtype and stated_loss is not None and stated_loss.upcast:
        # a loop's own loss, or the class for causal language
        architecture = architecture._replace(logit_casts=architecture.logit_casts._replace(in_loss=True))
    if objective.loss_in_model and stated_loss is not None:
        stated_loss = stated_loss._replace(kind="standard")
    attention = _attention(training.attention, architecture, framework, after)
    job = TrainingJob(
        architecture=architecture,
        framework=framework,
        framework_version=training.framework_version,
        layout=layout,
        recipe=with_optimizer(recipe, optimizer, framework),
        optimizer=optimizer,
        micro_batch_size=1,
        sequence_length=1,
        gradient_accumulation_steps=1,
        method=method,
        base_format=base_format,
        unread_share=unread_share,
        lora=lora,
        freeze=training.freeze or (),
        images=_images(training, architecture, framework, options, after),
        target_length=_target(training, architecture, after),
        checkpointing=checkpointing,
        attention=attention,
        loss=resolve_loss(
            stated_loss,
            layout,
            framework,
            after,
            training.framework_version,
            objective.usual_loss,
            class_keeps_dtype=class_keeps_dtype,
        ),
        clip_grad_norm=after.stated_or(
            "training.clip_grad_norm",
            training.clip_grad_norm,
            framework.clip_grad_norm,
            f"default of {framework.name}",
        ),
        expert_imbalance=_imbalance(training, layout.expert, after),
        compile=bool(training.compile),
        expandable_segments=resolve_expandable(training, framework, after),
        parameter_offload=offloaded,
        initialization=resolve_initialization(
            training.initialization,
            layout,
            base_format,
            framework,
            after,
            version=training.framework_version,
            model=plan.model.name or "",
        ),
        checkpoint=resolve_checkpoint(training.checkpoint, layout, framework, options, after),
        options=tuple(options.items()),
        hooks_embedding=lora is not None and framework.trainer_package(training.trainer).hooks_embedding,
        prepares_kbit=resolve_kbit(base_format, options, layout, framework, training.trainer, after),
        fsdp=fsdp,
        groups_embedding_and_head=resolve_carving(training, fsdp, options, layout, framework, wrapper),
        upcast=upcast,
        objective=objective,
        head=head,
        evaluation=_evaluation(training.evaluation, after),
        auxiliary_models=resolve_companions(objective, architecture, _loaded(precision, recipe), offloaded, teacher),
        ssm_kernels=(training.kernels or NO_KERNELS).ssm or "fused",
        liger=_liger((training.kernels or NO_KERNELS).liger),
    )
    rows = resolve_rows(training, architecture, framework, attention, layout, after)
    job = job._replace(sequences=rows.sequences, may_pad=rows.may_pad)
    if job.images is not None and not job.images.patches and isinstance(architecture, Architecture):
        from memcheck.models.variants import without_pictures

        job = job._replace(architecture=without_pictures(architecture))
    notes = NotesByPart(
        before_batch=defaults.assumptions(),
        before_steps=between.assumptions(),
        before_torch=(*after.assumptions(), *wrapper.assumptions()),
    )
    return JobFrame(job=job, gpu=gpu, overhead=Overhead(), framework=framework, notes=notes)


def _note_unstated_options(
    training: plan_types.TrainingSpec,
    layout: Layout,
    framework: Framework,
    options: dict[str, object],
    defaults: Defaults,
) -> None:
    """Note in ``defaults`` the values of options that the plan leaves out and that decide its memory."""
    why = f"default of {framework.name}"
    if training.compile and _unstated("components", framework, options):
        defaults.note("training.options.components", ["model", "loss"], f"{why} since April 2025")
    if layout.expert > 1 and _unstated("dispatcher", framework, options):
        defaults.note("training.options.dispatcher", "torch", "every token is gathered on every rank of its experts")
    if options.get("quantizer") and _unstated("groupsize", framework, options):
        defaults.note("training.options.groupsize", 256, why)
    if _offloads(training) and _unstated("pin_memory", framework, options):
        defaults.note("training.options.pin_memory", True, why)


def _loaded(precision: plan_types.PrecisionSpec | None, recipe: Recipe) -> Recipe:
    """Return the recipe with the dtype in which models are loaded; trained weights may be cast to fp32 later."""
    return recipe._replace(params=(precision and precision.params) or recipe.params)


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


def _unstated(name: str, framework: Framework, options: Mapping[str, object]) -> bool:
    """Whether the framework has an option that the plan does not state."""
    return name in framework.options and name not in options


def _offloads(training: plan_types.TrainingSpec) -> bool:
    """Say whether the plan offloads optimizer states or parameters to the host or to NVMe."""
    optimizer, offload = training.optimizer, training.offload
    places = [optimizer.offload if optimizer is not None else None, offload.parameters if offload is not None else None]
    return any(place not in (None, "none") for place in places)


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


def _overhead(policy: plan_types.PolicySpec, defaults: Defaults) -> Overhead:
    """Return how allocated bytes become device bytes: by the model, or by a flat share of them that the plan states."""
    if isinstance(policy.overhead, float | int):
        return Overhead("flat", float(policy.overhead))
    return Overhead(defaults.stated_or("policy.overhead", policy.overhead, "modeled"))
