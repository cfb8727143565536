"""From ``training`` to the rows of a micro-batch, the settings of one step, and how the model is made and saved."""

from __future__ import annotations

from memcheck.autograd.tensor import ceil_div
from memcheck.autograd.weight_formats import BITSANDBYTES, WeightFormat
from memcheck.job.framework import DEFAULT_OPTIMIZER, Framework
from memcheck.job.layout import recomputes
from memcheck.job.lookup import PLAN_DEFAULT, Defaults, JobProblem, ResolutionError
from memcheck.job.types import (
    UNPACKED,
    Checkpoint,
    Checkpointing,
    Initialization,
    Layout,
    Loss,
    Optimizer,
)
from memcheck.models.types import Architecture, Attention, Mixer, Rough
from memcheck.plan import types as plan_types
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.types import TrainingJob
    from memcheck.models.encoder import Encoder


KERNELS = {
    **dict.fromkeys(("mamba1", "mamba1-heads", "mamba2"), "mamba-ssm"),
    "gated-delta-net": "flash-linear-attention",
    "short-convolution": "causal-conv1d",
}
"""Packages whose fused kernels the estimate of recurrent layers assumes. transformers falls back to code of its own
without them (``use_kernel_func_from_hub_with_fallback``), whose traced steps took 2.1 to 2.5 times as much.
"""


def fused_packages(architecture: Architecture | Rough) -> list[str]:
    """List the Python packages whose fused kernels the estimate of the model's recurrent layers assumes."""
    if not isinstance(architecture, Architecture):
        return []
    kinds: set[str] = set()
    for block, _ in architecture.blocks:
        kinds.update(mixer.kind for mixer in (block.mixer, block.second_mixer) if isinstance(mixer, Mixer))
    return [package for kind, package in KERNELS.items() if kind in kinds]


DEFAULT_CHUNKS = 8
"""Chunks of a chunked loss: torchtune's ``CEWithChunkedOutputLoss`` and torchtitan's ``ChunkedLossWrapper``."""
ON_LOGITS = ("standard", "vocab-parallel", "in-place")
"""Kinds of loss on the model's own logits."""
ON_HOST = ("host", "rank0")
"""Places in the memory of a node."""
GATHERS = "stage3_gather_16bit_weights_on_model_save"


class BatchSize(Record):
    """The size of one forward pass."""

    sequences: int
    """``training.micro_batch_size``."""
    tokens: int
    """Tokens per sequence: of the longest row if the plan states it, else ``training.sequence_length``."""


def resolve_batch(training: plan_types.TrainingSpec, defaults: Defaults) -> BatchSize:
    """Return the size of one forward pass; a micro-batch size that is not stated is 1.

    Raises:
        ResolutionError: no sequence length is stated, or the longest row contradicts it.
    """
    if training.sequence_length is None:
        problem = JobProblem(
            "missing",
            "/training",
            "training.sequence_length is missing: activations and logits are proportional to it",
            help="write the number of tokens per sequence, e.g. `sequence_length: 8192`",
        )
        raise ResolutionError((problem,))
    tokens = training.sequence_length
    if training.longest_row is not None:
        tokens = check_longest(training, tokens)
    return BatchSize(defaults.stated_or("training.micro_batch_size", training.micro_batch_size, 1), tokens)


def resolve_accumulation(
    training: plan_types.TrainingSpec, layout: Layout, micro_batch_size: int, defaults: Defaults
) -> int:
    """Return the micro-batches per optimizer step on a data-parallel rank: stated, or from the global batch size.

    A global batch that does not divide is rounded up; rule MEM402 reports it.
    """
    if training.gradient_accumulation_steps is not None:
        return training.gradient_accumulation_steps
    if training.global_batch_size is None:
        return defaults.stated_or("training.gradient_accumulation_steps", None, 1)
    per_pass = micro_batch_size * layout.data
    steps = max(1, ceil_div(training.global_batch_size, per_pass))
    why = f"global_batch_size {training.global_batch_size} / (micro_batch_size {micro_batch_size} * data {layout.data})"
    defaults.note("training.gradient_accumulation_steps", steps, why)
    return steps


def resolve_optimizer(stated: plan_types.OptimizerSpec | None, framework: Framework, defaults: Defaults) -> Optimizer:
    """Return the optimizer: name, implementation and where its states are; values not stated are noted.

    ``stated``: the plan's ``training.optimizer``.
    """
    stated = stated or plan_types.OptimizerSpec()
    name = defaults.stated_or("training.optimizer.name", stated.name, DEFAULT_OPTIMIZER)
    implementation = framework.optimizers.by_name.get(name, framework.optimizers.implementation)
    why = f"default of {framework.name} for {name}"
    if name.startswith("paged-"):
        note = "large states lie in managed memory: no part of what is needed, since the driver moves them to the host"
        defaults.note("training.optimizer.offload", "managed memory", note)
    implementation = defaults.stated_or("training.optimizer.implementation", stated.implementation, implementation, why)
    return Optimizer(
        name=name,
        implementation=implementation,
        offload=stated.offload or "none",
        in_backward=bool(stated.in_backward),
    )


def resolve_checkpointing(
    stated: plan_types.ActivationCheckpointingSpec | None,
    version: str | None,
    framework: Framework,
    options: dict[str, object],
    defaults: Defaults,
) -> Checkpointing:
    """Return the activation checkpointing: the plan's, or what the framework's ``options`` imply.

    ``version``: of the framework, which decides whether checkpoints are reentrant. Assumptions are noted.
    """
    stated = stated or plan_types.ActivationCheckpointingSpec()
    # the mode: what the plan states, else what an option or a list of modules implies, else the framework's default
    implied = recomputes(options)
    if stated.mode is None and implied is not None:
        mode = implied.value
        defaults.note("training.activation_checkpointing.mode", mode, implied.why)
    elif stated.mode is None and stated.modules:
        mode = defaults.stated_or("training.activation_checkpointing.mode", None, "selective", "modules are listed")
    else:
        usual, offload, why = framework.usual_checkpoints
        mode = defaults.stated_or("training.activation_checkpointing.mode", stated.mode, usual, why or PLAN_DEFAULT)
        if stated.mode is None and stated.offload is None and offload != "none":
            defaults.note("training.activation_checkpointing.offload", offload, why)
            stated = stated._replace(offload=offload)
    why_reentrant = ""
    if framework.always_reentrant:
        why_reentrant = f"default of {framework.title}"
    elif framework.predates(version, "non-reentrant"):
        why_reentrant = f"default of {framework.name} {version}"
    reentrant = bool(stated.reentrant)
    if mode == "full" and why_reentrant:
        key = "training.activation_checkpointing.reentrant"
        reentrant = defaults.stated_or(key, stated.reentrant, default=True, why=why_reentrant)
    return Checkpointing(
        mode=mode,
        reentrant=reentrant,
        every_n_layers=stated.every_n_layers or 1,
        modules=stated.modules or (),
        offload=stated.offload or "none",
    )


def resolve_loss(
    stated: plan_types.LossSpec | None,
    layout: Layout,
    framework: Framework,
    defaults: Defaults,
    version: str | None = None,
    usual: str = "",
    *,
    class_keeps_dtype: bool = False,
) -> Loss:
    """Return the kind of the loss, and what it does to the logits; values not stated are noted in ``defaults``.

    ``stated``: the plan's ``training.loss``. ``version``: of the framework. ``usual``: the kind that the framework's
    recipe uses for the objective. ``class_keeps_dtype``: the model's own class
    does not cast the logits to fp32 for its loss.
    """
    stated = stated or plan_types.LossSpec()
    kind = defaults.stated_or("training.loss.kind", stated.kind, usual or framework.losses.default)
    parallel = framework.losses.vocab_parallel_when  # when the framework divides the vocabulary without being asked
    if kind == "standard" and (parallel == "always" or (parallel == "tensor" and layout.tensor > 1)):
        kind = "vocab-parallel"
        defaults.note("training.loss.kind", kind, f"the standard loss of {framework.name} with this layout")
    chunks = 1
    if framework.chunks(kind):
        chunks = defaults.stated_or("training.loss.chunks", stated.chunks, DEFAULT_CHUNKS)
    why = f"default of {framework.name}"
    upcast = stated.upcast is not False
    if stated.upcast is None:
        model_why = "the loss of the model's own class takes logits as they are"
        defaults.note("training.loss.upcast", upcast and not class_keeps_dtype, model_why if class_keeps_dtype else why)
    keep_logits = bool(stated.keep_logits)
    returns_logits = kind in ON_LOGITS or (kind == "chunked" and framework.fsdp2.loss_reduces_head)
    if returns_logits and layout.pipeline > 1 and framework.caches_last_stage_logits:
        keep_logits = True
        cached = "a stage caches its output (torch/distributed/pipelining/stage.py)"
        defaults.note("training.loss.keep_logits", keep_logits, cached)
    elif kind == "standard":  # the training loop drops the logits of a vocabulary-parallel loss
        usual_keep = framework.losses.keep_logits
        keep_logits = defaults.stated_or("training.loss.keep_logits", stated.keep_logits, usual_keep, why)
    shifts = ""
    if kind in ("standard", "in-place") and framework.predates(version, "shifted labels"):
        shifts = "rebound" if framework.predates(version, "own loss") else "copied"
    return Loss(kind=kind, chunks=chunks, upcast=upcast, keep_logits=keep_logits, shifts=shifts)


def resolve_initialization(
    stated: plan_types.InitializationSpec | None,
    layout: Layout,
    base_format: WeightFormat | None,
    framework: Framework,
    defaults: Defaults,
    *,
    version: str | None = None,
    model: str = "",
) -> Initialization:
    """Return where the model is initialized (``host``, ``rank0``, ``device`` or ``meta``), and in which dtype.

    ``stated``: the plan's. ``base_format``: of a quantised base. ``version``: of the framework. ``model``: its name.
    Assumptions are noted in ``defaults``.
    """
    stated = stated or plan_types.InitializationSpec()
    device, why = framework.made(layout, sharded=shards_parameters(layout, framework))
    if base_format in BITSANDBYTES and framework.runs_transformers:  # its quantizer sets a device map: the current GPU
        device, why = "device", "transformers quantizes each tensor on the GPU of its process"
    device = defaults.stated_or("training.initialization.place", stated.place, device, why)
    if device in ON_HOST:
        return Initialization(device, defaults.stated_or("training.initialization.weights", stated.weights, "bf16"))
    ahead = base_format in BITSANDBYTES and framework.loads_ahead(version) and not model.endswith("-bnb-4bit")
    if ahead:
        why = f"{framework.name} {version} loads matrices in 16 bits faster than it quantises them: at most all of them"
        defaults.note("training.initialization.weights", "bf16", why)
    return Initialization(device, stated.weights or "bf16", ahead)  # elsewhere nothing depends on the dtype


def resolve_checkpoint(
    stated: plan_types.CheckpointSpec | None,
    layout: Layout,
    framework: Framework,
    options: dict[str, object],
    defaults: Defaults,
) -> Checkpoint:
    """Return how a checkpoint is saved: full or sharded state dicts, with or without the optimizer's states.

    ``stated``: the plan's ``training.checkpoint``. Assumptions are noted in ``defaults``.
    """
    stated = stated or plan_types.CheckpointSpec()
    of_replicated, of_sharded = framework.load_and_save.checkpoint
    kind = of_sharded if shards_parameters(layout, framework) else of_replicated
    why = f"default of {framework.name}"
    if options.get(GATHERS):
        kind, why = "full", f"options.{GATHERS}"
    return Checkpoint(
        state_dict=defaults.stated_or("training.checkpoint.state_dict", stated.state_dict, kind, why),
        optimizer=True if stated.optimizer is None else stated.optimizer,
        offload=stated.offload or "cpu",
        asynchronous=bool(stated.asynchronous),
    )


def shards_parameters(layout: Layout, framework: Framework) -> bool:
    """Return whether a data-parallel rank keeps only a shard of the parameters: FSDP from stage 2 on, ZeRO at 3."""
    first_stage = 3 if framework.has_sharding_engine else 2
    return layout.zero_stage >= first_stage and layout.shard_group > 1


def known_options(stated: dict[str, object] | None, framework: Framework) -> dict[str, object]:
    """The options that this framework has; rule MEM404 reports the rest."""
    return {name: _hashable(value) for name, value in sorted((stated or {}).items()) if name in framework.options}


def _hashable(value: object) -> object:
    """Return the value with lists as tuples at any depth, because a job's options are part of cache keys."""
    return tuple(_hashable(each) for each in value) if isinstance(value, list) else value


PLACE = "/training/target_length"


def encoder_length(job: TrainingJob, encoder: Encoder) -> int:
    """Return the rows that the encoder reads per sample."""
    return encoder.rows_per_sample or job.sequence_length


def target_length(job: TrainingJob, encoder: Encoder) -> int:
    """Return the tokens that the decoder reads per sample: the plan's, or what :func:`resolve_target` has noted."""
    return job.target_length or encoder.decoder_tokens or job.sequence_length


def lengths(job: TrainingJob, encoder: Encoder) -> tuple[int, int]:
    """Return the rows of the encoder and the tokens of the decoder per sample."""
    return encoder_length(job, encoder), target_length(job, encoder)


def resolve_target(training: plan_types.TrainingSpec, architecture: Architecture | Rough, defaults: Defaults) -> int:
    """Return the tokens of the decoder's labels per sample (``training.target_length``), or 0.

    0 means that the plan does not state them, or that the model has no encoder. :func:`target_length` then takes
    ``encoder.targets``, the positions of a speech model's decoder, or else ``sequence_length``. For an encoder-decoder
    this is noted in ``defaults``.

    Raises:
        ResolutionError: the plan states ``target_length`` and the model has no encoder, or its decoder has fewer
            learned positions than that.
    """
    stated = training.target_length
    encoder = architecture.encoder if isinstance(architecture, Architecture) else None
    if not isinstance(architecture, Architecture) or encoder is None:
        if stated is not None:
            message = "target_length is the length of an encoder-decoder's labels, and this model has no encoder"
            help = "remove it: sequence_length counts every token that the model reads"
            raise ResolutionError((JobProblem("target", PLACE, message, help=help),))
        return 0
    if stated is None:
        if encoder.decoder_tokens:
            why = "not stated: the most that the decoder has positions for"
            defaults.note("training.target_length", encoder.decoder_tokens, why)
        else:
            defaults.note("training.target_length", "sequence_length", "not stated: labels as long as the input")
        return 0
    if 0 < architecture.max_position_embeddings < stated:
        positions = architecture.max_position_embeddings
        message = f"the decoder has {positions:,} learned positions, and target_length is {stated:,}"
        raise ResolutionError((JobProblem("target", PLACE, message, help=f"write {positions:,} at most"),))
    return stated


def check_length(architecture: Architecture | Rough, sequence_length: int) -> None:
    """Check that the encoder reads as many rows as ``sequence_length`` states.

    Raises:
        ResolutionError: the two numbers differ.
    """
    encoder = architecture.encoder if isinstance(architecture, Architecture) else None
    rows = 0 if encoder is None else encoder.rows_per_sample
    if rows in (0, sequence_length):
        return
    message = f"the encoder reads {rows:,} rows of every sample, and sequence_length is {sequence_length:,}"
    help = f"write sequence_length: {rows}; the labels' tokens are `target_length`"
    raise ResolutionError((JobProblem("target", "/training/sequence_length", message, help=help),))


GROWS = (
    "rows have many lengths, and what nvidia-smi shows grows over the steps; expandable segments, packed rows or the "
    "longest rows first keep it down"
)
"""What the allocator's default does over many steps of rows that are not packed."""
ESTIMATED_AS = {"unpacked": "packed", "unpacked-masked": "masked"}
"""Stated ``training.sequences`` to the layout of :class:`RowsLayout` that is estimated in its place.

Such rows are one text each, of many lengths, and are estimated without padding. The longest of them is a full row, so
that full rows, without or with a mask, are the upper bound."""
MASKED = ("sdpa", "eager")
"""Attentions that are given a mask, whose memory model is known."""


class RowsLayout(Record):
    """How texts fill the rows of a micro-batch, each ``sequence_length`` tokens long."""

    sequences: str
    """Resolved ``training.sequences``. ``packed``: every row is full, and no mask separates its texts.
    ``padded``: one text per row, padded to the longest of the micro-batch, with a mask for the padding. ``masked``:
    full rows of several texts, which a mask keeps apart. ``flattened``: the rows of a micro-batch end to end in one.
    """
    may_pad: bool = False
    """The rows are estimated as ``packed`` because the plan does not say how they lie, but a collator may pad them."""


AS_FULL = "rows are taken as full; `padded` if a collator pads them to the longest of a micro-batch"
"""Why rows of texts are packed where the plan does not say how they lie."""


def resolve_rows(
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    framework: Framework,
    attention: str,
    layout: Layout,
    defaults: Defaults,
) -> RowsLayout:
    """Return how the rows of a micro-batch lie: as the plan says, or as rows of such a model and framework do.

    ``attention``: the implementation, which decides whether padding has a memory model. Assumptions are noted in
    ``defaults``.
    """
    rows = _rows_layout(training, architecture, framework, attention, layout, defaults)
    stated = training.expandable_segments
    expandable = framework.expandable if stated is None else stated
    if not expandable and (rows.sequences == "padded" or training.sequences in ESTIMATED_AS):
        defaults.note("training.expandable_segments", False, GROWS)
    return rows


def _rows_layout(
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    framework: Framework,
    attention: str,
    layout: Layout,
    defaults: Defaults,
) -> RowsLayout:
    """Return how the rows of a micro-batch lie, as :func:`resolve_rows` does, without its note about the allocator.

    Taken in turn: what the plan states, ``padded`` if it states its longest row, the layout of rows of texts, and
    ``packed``. ``attention``: the implementation. Rows whose layout has no memory model are ``packed``.
    """
    if training.sequences is not None or not isinstance(architecture, Architecture):
        stated = training.sequences or "packed"
        sequences = ESTIMATED_AS.get(stated, stated)
        if sequences == "padded" and framework.runs_transformers:
            obstacle = unmodelled(sequences, architecture, framework, attention, layout.context)
            if obstacle:
                defaults.note(
                    "training.sequences", "packed", f"padded rows under {obstacle} are estimated as full ones"
                )
                return RowsLayout("packed")
        return RowsLayout(sequences)
    if training.longest_row is not None:
        return RowsLayout(unpacked_rows(architecture, framework, attention, layout.context, defaults))
    reads_texts = architecture.task is not None or encodes(architecture)
    if reads_texts:
        return rows_of_texts(architecture, framework, attention, layout.context, defaults)
    return RowsLayout("packed")


def encodes(a: Architecture) -> bool:
    """Return whether the model reads text in both directions: an encoder, alone or before a decoder."""
    if a.encoder is not None:
        return not a.encoder.mel_bins
    return any(isinstance(block.mixer, Attention) and block.mixer.bidirectional for block, _ in a.blocks)


def unmodelled(
    rows: str, architecture: Architecture | Rough | None, framework: Framework, attention: str, context: int
) -> str:
    """Return what has no memory model for padded or masked rows; empty if all of it has one.

    ``context``: the degree of context parallelism.
    """
    if not framework.runs_transformers:
        return framework.title
    unpads = attention == "flash" and rows == "padded"
    if attention not in MASKED and not unpads:
        return f"attention `{attention}`"
    from memcheck.models.variants import maskable, unpaddable

    if not isinstance(architecture, Architecture) or not maskable(architecture):
        return "this model's attention"
    if unpads and not unpaddable(architecture):
        return f"attention `{attention}`"
    return "context parallelism" if context > 1 else ""


def rows_of_texts(
    architecture: Architecture, framework: Framework, attention: str, context: int, defaults: Defaults
) -> RowsLayout:
    """Return how the rows of an encoder, or of a task head, lie if the plan does not say: ``padded`` or ``packed``.

    Such texts have many lengths. transformers' collators pad them to the longest of a micro-batch and make a mask
    (``data/data_collator.py``, DataCollatorForSeq2Seq and DataCollatorWithPadding, the Trainer's default; trl
    ``trainer/reward_trainer.py``, DataCollatorForPreference; sentence-transformers' tokenizers). Rows of an encoder are
    assumed to be padded if the trainer has such a collator. Other rows are assumed to be full, and a second estimate
    says what they need if they are padded. ``context``: context-parallel degree.
    """
    key = "training.sequences"
    obstacle = unmodelled("padded", architecture, framework, attention, context)
    if obstacle:
        defaults.note(key, "packed", f"padded rows under {obstacle} are estimated as full ones")
        return RowsLayout("packed")
    if framework.trainers and encodes(architecture):
        defaults.note(key, "padded", "what encoders read: rows of many lengths; `packed` if every row is full")
        return RowsLayout("padded")
    defaults.note(key, "packed", AS_FULL)
    return RowsLayout("packed", may_pad=True)


def unpacked_rows(
    architecture: Architecture, framework: Framework, attention: str, context: int, defaults: Defaults
) -> str:
    """Return ``padded`` for a plan that states its longest row, or ``packed`` if padding has no memory model here.

    ``context``: context-parallel degree. The assumption is noted in ``defaults``.
    """
    obstacle = unmodelled("padded", architecture, framework, attention, context)
    sequences, why = "padded", "longest_row is stated"
    if obstacle:
        sequences, why = "packed", f"padded rows under {obstacle} are estimated as full ones"
    defaults.note("training.sequences", sequences, why)
    return sequences


LONGEST = "training.longest_row"
"""The plan key of the longest row's tokens."""


def check_longest(training: plan_types.TrainingSpec, limit: int) -> int:
    """Return the longest row that a plan states, if rows of at most ``limit`` tokens can have it.

    Raises:
        ResolutionError: it is longer, or the plan says that every row is full.
    """
    longest = limit if training.longest_row is None else training.longest_row
    sequences = training.sequences
    problem = help = ""
    if sequences is not None and sequences not in UNPACKED:
        problem = f"`longest_row` is of rows that are not packed, and `sequences: {sequences}` are full"
        help = "leave it out: every row has `sequence_length` tokens"
    elif longest > limit:
        problem = f"longest_row is {longest:,} tokens, and sequence_length, the limit of a row, is {limit:,}"
        help = "raise sequence_length, or state a shorter longest row"
    if problem:
        raise ResolutionError((JobProblem("rows", "/training/longest_row", problem, help=help),))
    return longest
