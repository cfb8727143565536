"""FSDP2's parameter groups: what they gather, reduce and keep.

Source: torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py. Each tensor is cut
along dim 0 and padded to a multiple of the ranks; a group gathers into one flat buffer, copies out into full parameters
and reduces gradients through one flat input in the reduce dtype.

What FSDP casts for the root's forward.
"""

from __future__ import annotations

from memcheck.accounts.state import FOUR_BITS, LocalTensor, shard_numel
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.torch.pipelining import SPLIT
from memcheck.job.types import DTYPE_BYTES, Layout, Recipe, TrainingJob
from memcheck.job.versions import WRAPS, ends_apart, reduces_wider, wraps_adapters
from memcheck.models.types import Architecture
from memcheck.record import Record


def uses_fsdp(job: TrainingJob) -> bool:
    """Say whether FSDP2 wraps the model: it shards it, or casts it on one rank."""
    layout, profile = job.layout, job.framework
    if profile.own_engine or layout.zero_stage < 2:
        return False
    return layout.shard_group > 1 or (profile.fsdp2.on_one_rank and layout.zero_stage == 3)


def uses_flat_parameters(job: TrainingJob) -> bool:
    """Return whether FSDP1 flattens each unit's parameters into one tensor. Pipelines are torch's, which only know
    FSDP2.
    """
    return uses_fsdp(job) and job.fsdp == 1 and job.layout.shard_group > 1 and job.layout.pipeline == 1


def mixes_adapters(job: TrainingJob) -> bool:
    """Say whether one flat parameter holds a layer's frozen weights and its adapters.

    A flat parameter wants a gradient if one of its tensors does, and then every tensor in it gets one (torch 2.13
    distributed/fsdp/_flat_param.py, ``FlatParamHandle._init_flat_param_and_metadata``; _wrap_utils.py,
    ``_validate_frozen_params`` warns of it). The optimizer still steps on adapters alone.
    """
    if job.lora is None or not uses_flat_parameters(job):
        return False
    return not wraps_adapters(job.framework, job.framework_version, job.option(WRAPS))


def has_adapter_units(job: TrainingJob) -> bool:
    """Return whether FSDP1 wraps trained modules inside frozen layers, such as adapters, as units of their own."""
    return job.lora is not None and uses_flat_parameters(job) and not mixes_adapters(job)


def autocast_dtype(job: TrainingJob) -> str | None:
    """Return the dtype of ``torch.autocast`` around the model's forward; None without autocast.

    It comes from the recipe, or from accelerate and Lightning Fabric around FSDP1, whose policy casts what it gathers.
    They use none around FSDP2 (accelerate 1.15 accelerator.py, ``prepare_model``;
    lightning/fabric/plugins/precision/fsdp.py, ``forward_context``).
    """
    profile = job.framework
    flat = job.fsdp == 1 and (profile.wide_outputs or profile.flattens_units)
    around = job.recipe.autocast or (flat and casts_parameters(job))
    return job.recipe.compute if around else None


def casts_parameters(job: TrainingJob) -> bool:
    """Whether FSDP gathers parameters in the dtype of the products, whichever they rest in."""
    return not job.recipe.autocast and job.recipe.recipe.endswith("-mixed")


def runs_chunk_by_chunk(job: TrainingJob) -> bool:
    """Return whether the step records each pipeline chunk of a rank apart.

    A schedule that splits the backward needs it, and so do several chunks that FSDP2 wraps under an interleaved
    schedule.
    """
    layout = job.layout
    if layout.pipeline == 1 or layout.pipeline_schedule in SPLIT:
        return layout.pipeline > 1
    has_interleaved_chunks = layout.virtual_stages > 1 and layout.pipeline_schedule == "interleaved-1f1b"
    return has_interleaved_chunks and uses_fsdp(job) and job.fsdp == 2


def is_hybrid_sharded(layout: Layout) -> bool:
    """Return whether several groups of ranks each hold all shards (HSDP), so that gradients are all-reduced across
    groups.
    """
    return layout.shard_group < layout.data * layout.context


def all_gather_dtype(job: TrainingJob) -> str | None:
    """Return the dtype in which FSDP gathers everything that it wraps (``MixedPrecision(param_dtype)``); None: each
    tensor in its own.
    """
    return job.recipe.compute if casts_parameters(job) and not job.framework.own_engine else None


def is_zero3(job: TrainingJob) -> bool:
    """Whether ZeRO-3 divides parameters; those of a reference, too (TRL ``models/utils.py``, ``prepare_deepspeed``)."""
    return job.framework.own_engine and job.layout.zero_stage == 3


def accumulates_unsharded(job: TrainingJob) -> bool:
    """Say whether micro-batches before the last leave their gradients unsharded.

    torch.distributed.pipelining always reduces with the last one only (stage.py, backward_maybe_with_nosync).
    """
    delayed = job.layout.gradient_sync == "last" or job.layout.pipeline > 1
    return uses_fsdp(job) and job.run_micro_batches > 1 and delayed


def autograd_gradient_dtype(job: TrainingJob) -> str | None:
    """Return the dtype to which autograd itself casts gradients that are accumulated until a reduction; None without a
    cast.

    Since torch 2.15 autograd does so by ``grad_dtype`` (_set_unsharded_grad_dtypes). Before, post_backward copies them.
    """
    if job.fsdp == 2 and job.casts_gradients and accumulates_unsharded(job) and reduces_wider(job.recipe):
        return job.recipe.reduce
    return None


def loss_reduces_head(job: TrainingJob) -> bool:
    """Whether the loss itself reduces the head's gradient."""
    return job.framework.fsdp2.loss_reduces_head and job.loss.kind == "chunked"


def ends_share_group(job: TrainingJob) -> bool:
    """Say whether embedding, final norm and head share a group, which the framework wraps apart: they share a matrix.

    torchtitan/distributed/fsdp.py (``enable_weight_tying``), whatever the tensor-parallel degree; accelerate 1.14
    utils/fsdp_utils.py (``is_weights_tied``), whose group of norm and head is gathered by the first of both that runs:
    in front of the layers, where the embedding is normalised by the same module.
    """
    architecture = job.architecture
    if not (uses_fsdp(job) and isinstance(architecture, Architecture) and architecture.head):
        return False
    embedding_reads_final_norm = (
        architecture.embedding_norm is not None
        and architecture.final_norm is not None
        and architecture.embedding_norm.name == architecture.final_norm.name
    )
    if job.groups_embedding_and_head:
        return architecture.tie_word_embeddings or embedding_reads_final_norm
    return job.framework.fsdp2.groups_of_ends and architecture.tie_word_embeddings


def ends_stay_gathered(job: TrainingJob) -> bool:
    """Return whether embedding, final norm and head are in the root's group, which stays gathered all step."""
    return uses_fsdp(job) and (
        ends_share_group(job) or job.groups_embedding_and_head or not ends_apart(job, job.framework)
    )


def ends_have_own_groups(job: TrainingJob) -> bool:
    """Return whether the embedding is an FSDP2 group, and final norm and head another.

    The root's group then has what is left outside layers.
    """
    return uses_fsdp(job) and job.groups_embedding_and_head and not ends_share_group(job)


def is_in_end_group(tensor: LocalTensor) -> bool:
    """Return whether Accelerate wraps a tensor as embedding, or as final norm and head.

    It finds them by ``get_input_embeddings``, ``_find_final_norm`` and ``get_output_embeddings``, which is the last
    matrix of a head that has several.
    """
    return tensor.name.startswith(("embed_tokens.", "final_norm", "lm_head")) and ".dense." not in tensor.name


def outside_gradient_dtype(job: TrainingJob) -> str | None:
    """Return the dtype to which autograd casts gradients of the root's weights that are used outside of its forward.

    A chunked loss uses the head's. Their gradients come before the root's pre-backward hook has put off the cast.
    """
    outside = job.loss.kind == "chunked" and not loss_reduces_head(job)
    return (
        job.recipe.reduce if outside and job.casts_gradients and uses_fsdp(job) and reduces_wider(job.recipe) else None
    )


def adds_in_place(job: TrainingJob) -> bool:
    """Say whether later micro-batches find unsharded gradients in ``.grad``, and autograd adds to them.

    FSDP1 leaves them in the flat parameter's ``.grad``, in the dtype in which they are computed
    (torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook).
    """
    return accumulates_unsharded(job) and (job.fsdp == 1 or job.casts_gradients or not reduces_wider(job.recipe))


class Group(Record):
    """Bytes on one rank of one ``fully_shard`` parameter group (``FSDPParamGroup``), or of one FSDP1 flat parameter."""

    flat: int
    """Output of the all-gather (``all_gather_output``), from which the parameters are copied out."""
    gathered: int
    """The unsharded parameters after copy-out (``unsharded_param``)."""
    reduce_input: int
    """Flat input of the reduce-scatter (``reduce_scatter_input``), in the reduce dtype."""
    reduce_output: int
    """Output of the reduce-scatter (``reduce_output``): the new sharded gradients are views of it."""
    sharded: int
    """The sharded gradients (``sharded_param.grad``) in the dtype of the parameters. If that is the reduce dtype,
    they are the reduce-scatter's output itself.
    """
    accumulated: int
    """Unsharded gradients of micro-batches that do not synchronise (``unsharded_accumulated_grad``)."""
    copied: int = 0
    """Temporaries of the copy-out: chunks of tensors sharded along another dimension than the first (torch 2.13
    _fsdp_collectives.py, foreach_all_gather_copy_out), and the largest cast of a tensor that a single rank holds
    (_fsdp_param_group.py, wait_for_unshard).
    """
    alone: int = 0
    """Gradients of experts that one rank holds. FSDP2 does not manage them: they stay as autograd makes them."""
    cast: int = 0
    """The local shards cast to the all-gather dtype, its input (torch 2.13 _fsdp_collectives.py,
    _get_param_all_gather_inputs); 0 if they are stored in it.
    """
    last: int = 0
    """The unsharded gradient of the last parameter: a loop variable refers to it until the reduction returns (torch
    2.13 _fsdp_collectives.py, foreach_reduce).
    """
    divided: int = 0
    """Gradients of parameters that one rank holds, divided by the framework's factor: a copy of the reduction's
    input (torch 2.13 _fsdp_collectives.py, foreach_reduce: "For single GPU").
    """


def fsdp_group(
    tensors: list[tuple[LocalTensor, int]],
    recipe: Recipe,
    *,
    casts_every_tensor: bool,
    accumulation_dtype: str,
    leaves_whole_experts: bool = False,
    reduces_accumulated: bool = False,
    divides_gradients: bool = False,
) -> Group:
    """Return the sizes in bytes of one FSDP2 parameter group on one rank.

    ``tensors``: each parameter with the number of ranks over which it is sharded; 1 = one rank has all of it.
    ``casts_every_tensor``: tensors with a dtype of their own are all-gathered in the recipe's dtype, too.
    ``accumulation_dtype``: dtype of unsharded gradients that are accumulated until a reduction.
    ``leaves_whole_experts``: experts that one rank has are not in the group. ``reduces_accumulated``: the reduction
    reads accumulated gradients. ``divides_gradients``: gradients of parameters that one rank has are divided by a
    factor of the framework.
    """
    compute_bytes, reduce_bytes = DTYPE_BYTES[recipe.compute], DTYPE_BYTES[recipe.reduce]
    accumulation_bytes = DTYPE_BYTES[accumulation_dtype]
    flat = gathered = cast = copied = reduce_in = reduce_out = sharded = accumulated = alone = last = 0
    divided = largest_unsharded_cast = 0
    for t, shards in tensors:
        if leaves_whole_experts and t.expert and shards == 1:  # only its gradient is counted
            alone += rounded(t.numel * DTYPE_BYTES[t.dtype or recipe.params]) if t.trained else 0
            continue
        shard = shard_numel(t, shards)
        padded_numel = shard * shards
        if t.dtype in FOUR_BITS:
            stored_bytes = element_bytes = 1  # bitsandbytes packs its weights into bytes, which are never cast
        else:
            stored_bytes = DTYPE_BYTES[t.dtype or recipe.params]
            element_bytes = compute_bytes if t.dtype is None or casts_every_tensor else DTYPE_BYTES[t.dtype]
        # the all-gather's output is one flat tensor, which is copied out into one tensor per parameter
        unsharded_bytes = rounded(padded_numel * element_bytes)
        gathered += unsharded_bytes
        is_cast = element_bytes != stored_bytes
        if shards > 1:
            flat += padded_numel * element_bytes
            cast += shard * element_bytes if is_cast else 0
            copied += unsharded_bytes if t.divided else 0
        elif is_cast:
            largest_unsharded_cast = max(largest_unsharded_cast, unsharded_bytes)
        if t.trained:  # the reduce-scatter reads one flat tensor, and writes another of this rank's shards
            reduce_in += padded_numel * reduce_bytes
            divided += padded_numel * reduce_bytes if divides_gradients and shards == 1 else 0
            reduce_out += shard * reduce_bytes
            sharded += shard * stored_bytes
            accumulated += rounded(t.numel * accumulation_bytes)
            last = rounded(t.numel * (accumulation_bytes if reduces_accumulated else element_bytes))
    return Group(
        flat=rounded(flat),
        gathered=gathered,
        reduce_input=rounded(reduce_in),
        reduce_output=rounded(reduce_out),
        sharded=rounded(sharded),
        accumulated=accumulated,
        copied=copied + largest_unsharded_cast,
        alone=alone,
        cast=rounded(cast),
        last=last,
        divided=rounded(divided),
    )


NO_GROUP = Group(flat=0, gathered=0, reduce_input=0, reduce_output=0, sharded=0, accumulated=0)


def casts_inputs(job: TrainingJob, input_dtype: str) -> bool:
    """Say whether FSDP narrows what the batch brings in this dtype, for the root's forward: ``cast_forward_inputs`` of
    FSDP2, and ``cast_root_forward_inputs`` of FSDP1 (torch/distributed/fsdp).
    """
    dtype = all_gather_dtype(job)
    return dtype is not None and DTYPE_BYTES[dtype] < DTYPE_BYTES[input_dtype]
