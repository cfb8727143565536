"""The setting that the units of a rank share, its masks, and its layers: each with its tensors and memory curve."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Unit
from memcheck.autograd.context import Setting, elements, require_covered, touched_by, whole
from memcheck.autograd.curve import Curve, replay
from memcheck.autograd.tensor import Dim, ceil_div
from memcheck.frameworks.registry import layers_of
from memcheck.frameworks.torch.data_parallel import all_gather_dtype, autocast_dtype
from memcheck.frameworks.torch.rank_tensors import (
    dispatcher_of,
    kept_names,
    layer_tensors,
    placement_of,
    setting_placement,
    stream_dtype,
    upcasts_ends,
    widens_encoded,
    widens_inside,
    widens_stream,
)
from memcheck.frameworks.torch.resident import step_in_backward
from memcheck.frameworks.transformers.kernel_choice import Masks, fused_kernels, model_masks
from memcheck.frameworks.transformers.rotary import rotary_rows, wide_width
from memcheck.job.training import lengths
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block, Mixer


def base_setting(job: TrainingJob, architecture: Architecture, grad_dtype: str | None) -> Setting:
    """Return the setting that all units of a job share: shapes, dtypes, kernels and parallelism of one rank.

    ``grad_dtype``: dtype of gradients that are accumulated until a reduction (:class:`Accumulation`).
    """
    layout, recipe, style = job.layout, job.recipe, job.framework.style
    placement, parameter_dtype = placement_of(job), _parameter_dtype(job)
    decoded, encoded = job.sequence_length, 0
    if architecture.encoder is not None:
        encoded, decoded = lengths(job, architecture.encoder)
    stores_recipe_dtype = parameter_dtype == recipe.params and all_gather_dtype(job) is None
    setting = Setting(
        style=style,
        batch=job.rows // job.sequences_per_row,
        sequence=ceil_div(decoded * job.sequences_per_row, layout.context),
        encoder_length=encoded,
        hidden=architecture.hidden_size,
        tensor_parallel=placement.tensor,
        context_parallel=layout.context,
        ulysses=layout.context > 1 and job.framework.context_parallel == "ulysses",
        sequence_parallel=layout.sequence and layout.tensor > 1,
        expert_parallel=placement.expert,
        expert_tensor_parallel=placement.expert_tensor,
        param_dtype=parameter_dtype,
        compute_dtype=parameter_dtype,
        autocast_dtype=autocast_dtype(job),
        attention=job.attention,
        trained=placement.trained,
        frozen_modules=placement.frozen,
        adapter=placement.adapter,
        expert_imbalance=job.expert_imbalance,
        dispatcher=dispatcher_of(job),
        compiled=style.compiles_blocks and job.compiles("model"),
        optimizer_in_backward=step_in_backward(job.optimizer),
        grad_dtype=grad_dtype,
        has_grad_hooks=job.framework.data_parallel == "zero",
        reentrant=job.checkpointing.mode == "full" and job.checkpointing.reentrant,
        recurrent_kernels=job.ssm_kernels,
        liger=fused_kernels(job, architecture),
        recomputes_all_to_all=job.framework.predates(job.framework_version, "kept exchanges"),
        streams=architecture.streams,
        fp32_params=kept_names(job) if stores_recipe_dtype else (),
        options=job.options,
    )
    setting = _with_stream_dtypes(setting, job, architecture)
    if all_gather_dtype(job) is not None and job.fsdp_version == 2 and style.runs_transformers_modules:
        setting = setting._replace(rotary_table_rows=rotary_rows(architecture, setting.sequence, setting.batch))
    return _with_pictures(setting, job, architecture)


def _parameter_dtype(job: TrainingJob) -> str:
    """Return the dtype in which a unit's forward finds its weights, before autocast."""
    if job.prepares_kbit:
        return "fp32"
    return job.recipe.params if job.recipe.autocast else job.recipe.compute


def _with_stream_dtypes(setting: Setting, job: TrainingJob, architecture: Architecture) -> Setting:
    """Return the setting with the dtypes of the residual stream and of an encoder's output, where norms widen them."""
    narrow = setting.autocast_dtype is not None and setting.param_dtype != "fp32"
    if upcasts_ends(job) or widens_stream(architecture, autocast=narrow):
        setting = setting._replace(residual_dtype="fp32")
    if narrow and widens_encoded(architecture):
        setting = setting._replace(encoder_output_dtype="fp32")
    if widens_inside(architecture, setting):  # a norm after the encoder's layers makes its output as narrow as itself
        setting = setting._replace(residual_dtype="fp32", encoder_output_dtype=setting.param_dtype)
    return setting


def _with_pictures(setting: Setting, job: TrainingJob, architecture: Architecture) -> Setting:
    """Return the setting with the image tokens per sample, if layers of text read them by cross-attention."""
    vision = architecture.vision
    if vision is None or not vision.text_layers_that_read_images:
        return setting
    from memcheck.job.images import pictures_of

    image_tokens = pictures_of(job, vision).pictures * vision.tokens_per_tile // job.rows
    return setting._replace(encoder_length=image_tokens, encoder_output_dtype=setting.autocast_dtype)


def masks_of(architecture: Architecture, setting: Setting) -> Masks:
    """Return the bytes of all attention masks and position biases that one forward pass of the model makes."""
    if not setting.style.runs_transformers_modules:
        return Masks()
    return model_masks((block for block, _ in architecture.blocks), setting, architecture.mask_windows)


def casts_rotary_tables(architecture: Architecture, setting: Setting) -> bool:
    """Say whether FSDP2 casts cos and sin, which the model computes in fp32, once more for each layer's forward."""
    return bool(setting.rotary_table_rows) and any(wide_width(block) for block, _ in architecture.blocks)


def block_curve(block: Block, setting: Setting, recompute: str, inventory: bool = False) -> Curve:
    """Return the memory curve of one block; equal blocks are replayed once.

    On packed tokens softmax attention saves nothing per sequence. So all tokens are replayed as one sequence, unless
    Inductor compiles the block: its saved tensors were traced with the real shape.
    """
    if setting.style.activation_layout == "packed" and not setting.compiled and not isinstance(block.mixer, Mixer):
        setting = setting._replace(batch=1, sequence=setting.batch * setting.sequence)
    return replayed_block(block, setting, recompute, inventory)


@lru_cache(maxsize=4096)
def replayed_block(block: Block, setting: Setting, recompute: str, inventory: bool = False) -> Curve:
    """Replay the forward and backward of one block and return its memory curve.

    The input has the shape [tokens, hidden]; under sequence parallelism the tokens are divided by the tensor ranks.
    """
    rows = setting.batch * setting.sequence * setting.streams
    is_sequence_sharded = setting.sequence_parallel and setting.tensor_parallel > 1
    if is_sequence_sharded:
        rows //= setting.tensor_parallel
    shape = (Dim(rows, "T/tp" if is_sequence_sharded else "T"), Dim(setting.hidden, "h"))
    forward, is_checkpointed = layers_of(setting.style).recomputing(block, recompute)
    dtype, table = stream_dtype(setting), (0, 0)
    if setting.rotary_table_rows:  # FSDP2 casts cos and sin for each layer
        table = (setting.rotary_table_rows, wide_width(block))
    return replay(forward, setting, shape, dtype, recompute=is_checkpointed, inventory=inventory, table=table)


def block_unit(job: TrainingJob, block: Block, setting: Setting, recompute: str, adds: bool, inventory: bool) -> Unit:
    """Return the unit of one layer: its tensors on one rank, and its memory curves in bytes.

    ``recompute``: as :func:`recompute_mode` returns it. ``adds``: some micro-batch adds to existing gradients, and has
    a curve of its own. ``inventory``: the curves also list their tensors.
    """
    tensors = layer_tensors(job, block, setting_placement(setting))
    _require_block(block, whole(setting), job.framework.name)
    first_curve = block_curve(block, setting, recompute, inventory)
    later_curve = block_curve(block, setting.for_later_micro_batches(), recompute, inventory) if adds else first_curve
    frozen = not any(t.trained for t in tensors if ".lora_" not in t.name)
    unit = Unit(
        kind="block", name="layer", tensors=tensors, first_curve=first_curve, later_curve=later_curve,
        frozen_and_recomputed=frozen and recompute == "full" and setting.needs_input_gradient,
    )  # fmt: skip
    return _offloaded(unit) if job.checkpointing.offload == "cpu" else unit


@lru_cache(maxsize=1024)
def _require_block(block: Block, setting: Setting, framework: str) -> None:
    """Raise an error if the framework's forward of a layer leaves an element of the block unread."""
    forward, _ = layers_of(setting.style).recomputing(block, "none")
    require_covered(touched_by(forward, setting), elements(block), "a layer", framework)


def _offloaded(unit: Unit) -> Unit:
    """Return the unit with activation offload: its saved tensors are on the host between forward and backward."""
    offloaded = unit.first_curve.saved_bytes
    first_curve, later_curve = (
        curve._replace(saved_bytes=0, saved_components=(), saved_inventory=())
        for curve in (unit.first_curve, unit.later_curve)
    )
    return unit._replace(first_curve=first_curve, later_curve=later_curve, offloaded_bytes=offloaded)
