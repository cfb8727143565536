"""From a plan to a job of training or of inference: every value concrete, every default written down."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.job.framework import Framework
from memcheck.job.layout import resolve_layout
from memcheck.job.lookup import Defaults, JobProblem, ResolutionError, resolve_gpu, resolve_model, resolve_teacher
from memcheck.job.training import check_length, fused_packages, known_options, resolve_accumulation, resolve_batch
from memcheck.job.training_frame import NO_KERNELS, JobFrame, Ledgers, NotesByPart, TrainingInputs, training_frame
from memcheck.job.types import Assumption, InferenceJob, Overhead, TrainingJob
from memcheck.job.versions import resolve_torch
from memcheck.models.types import Architecture, Mixer, Rough
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


class Resolved(Record):
    """What the memory engine needs, and what was assumed on the way."""

    job: TrainingJob | InferenceJob
    gpu: Gpu
    overhead: Overhead
    assumptions: tuple[Assumption, ...]


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
    _note_recurrent_kernels(plan.training, architecture, defaults)  # before the framework, as reports list them
    framework = _choose_framework(plan.training, architecture, frameworks, defaults)
    if isinstance(architecture, Architecture):
        architecture = framework.built(architecture)
    teacher = None
    if plan.training.teacher is not None:
        teacher = resolve_teacher(plan.training.teacher, base_dir)
    ledgers = Ledgers(layout=defaults, model=Defaults(), step=Defaults(), releases=Defaults())
    options = known_options(plan.training.options, framework)
    inputs = TrainingInputs(plan=plan, training=plan.training, framework=framework, options=options, ledgers=ledgers)
    frame = training_frame(inputs, architecture, gpu, teacher)
    policy = Defaults()
    overhead = _overhead(plan.policy, policy)
    return frame._replace(overhead=overhead, notes=frame.notes._replace(policy=policy.assumptions()))


def _note_recurrent_kernels(
    training: plan_types.TrainingSpec, architecture: Architecture | Rough, defaults: Defaults
) -> None:
    """Note in ``defaults`` which packages of fused kernels a recurrent model is assumed to find installed."""
    if _recurs(architecture) and (training.kernels or NO_KERNELS).ssm is None:
        for package in fused_packages(architecture):
            why = f"recurrent layers run in its fused kernels; without {package} they take more than twice as much"
            defaults.note("model", f"{package} is installed", why)


def _choose_framework(
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    frameworks: Mapping[str, Framework],
    defaults: Defaults,
) -> Framework:
    """Choose the framework of a training, or the trainer's own profile where it replaces much of the model.

    A framework that the plan does not state is noted in ``defaults``.
    """
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


def _overhead(policy: plan_types.PolicySpec, defaults: Defaults) -> Overhead:
    """Return how allocated bytes become device bytes: by the model, or by a flat share of them that the plan states."""
    if isinstance(policy.overhead, float | int):
        return Overhead("flat", float(policy.overhead))
    return Overhead(defaults.stated_or("policy.overhead", policy.overhead, "modeled"))
