"""What of a job decides the cost of a layer, and the matrix products that it comes to."""

from __future__ import annotations

from memcheck.accounts.state import local_tensor
from memcheck.autograd.context import Adapter, adapts, is_frozen
from memcheck.models.module_types import DenseDispatchMoe
from memcheck.models.types import Block, Moe, ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from memcheck.timing.towers import TowerShape


class Shape(Record):
    """The settings of a job that decide the time of a layer; hashable, as the key of the cost caches."""

    batch: int
    """Sequences of one micro-batch."""
    sequence: int
    """Tokens per sequence on this rank."""
    context_parallel: int
    """Ranks that share a sequence."""
    tensor_parallel: int
    """Tensor-parallel ranks."""
    sequence_parallel: bool
    """The residual stream is divided among the tensor ranks along the sequence."""
    expert_parallel: int
    """Ranks that share out the experts of a layer."""
    expert_tensor_parallel: int
    """Ranks that share the matrices of one expert."""
    item_bytes: int
    """Bytes of an element of activations."""
    autocast: bool
    """``torch.autocast`` casts fp32 weights and inputs before each product."""
    fp8: bool
    """Linear layers multiply in fp8."""
    fused: bool
    """Element-wise operations of a layer run as few kernels: the layer is compiled, or is Transformer Engine's."""
    attention: str
    """The attention kernel: ``eager``, ``flash``, ..."""
    adapter: Adapter | None
    """LoRA, or None."""
    frozen_modules: tuple[str, ...]
    """Patterns of frozen parameters (``freeze`` of the plan)."""
    expert_imbalance: float
    """Routed tokens of the busiest rank over those of the mean rank."""
    recompute: str
    """``none`` | ``selective`` | ``full``."""
    recompute_modules: tuple[str, ...]
    """What selective recompute runs again; empty where it chooses among operators."""
    head_sharded: bool
    """The loss runs on vocabulary shards."""
    loss_kind: str
    """Kind of loss (``loss.kind`` of the plan)."""
    loss_chunks: int
    """Pieces of a chunked loss."""
    upcast: bool
    """The logits are cast to fp32 before the loss."""
    base_trained: bool
    """The base weights of the model are trained."""
    context_kind: str = ""
    """The kind of context parallelism (``context.py``): rings merge what attention over other ranks' keys gives."""
    repeats_kv_heads: bool = False
    """Keys and values are repeated for every query head."""
    fused_products: str = ""
    """Which layers that read one input run as one product: empty for none, ``attention`` or ``all``."""
    fused_norms: bool = False
    """A norm is one kernel."""
    fused_loss: bool = True
    """The loss is one kernel."""
    latent_inputs: str = "own"
    """What matrices that compress latents read, as :class:`memcheck.frameworks.stack.Timing` has it."""
    float8_tensors: bool = False
    """fp8 is torchao's."""
    by_operators: bool = False
    """Selective recompute chooses among operators: it keeps every second matrix product, and attention."""
    own_expert_groups: bool = False
    """Routed tokens go over groups of their own, instead of the tensor ranks'."""
    fp8_saved_input: bool = False
    """The activation function keeps its input in fp8 (Megatron's ``activation_func_fp8_input_store``)."""
    has_mtp: bool = False
    """Megatron's multi-token prediction (``mtp_num_layers``)."""
    adapted_module_name: Callable[[ParameterTensor, object], str] | None = None
    """What adapters' targets call a layer (:class:`memcheck.frameworks.stack.Timing`)."""
    tower: TowerShape | None = None
    """The vision tower's, where a step has pictures."""


class Product(Record):
    """One linear layer on one rank: ``[tokens, inputs] x [inputs, outputs]``, ``batch`` times."""

    name: str
    """Name of the parameter, without ``.weight``."""
    group: str
    """The module: ``attention`` | ``mlp`` | ``experts`` | ``shared_experts`` | ``router``."""
    tokens: int
    """Rows of the input on this rank."""
    outputs: int
    """Columns of the result, on this rank."""
    inputs: int
    """Inner dimension, on this rank."""
    batch: int
    """How many equal products: the local experts of a layer, else 1."""
    trained: bool
    """The weight gets a gradient."""
    adapted: bool
    """LoRA matrices are added to it."""
    parameters: int
    """Elements of the weights on this rank."""
    cast_input_elements: int
    """Elements that fp8 casts in forward."""
    cast_output_elements: int
    """Gradients of the output that it casts in backward."""
    shard: str
    """``column`` | ``row`` | ``none``."""
    shares_input: bool
    """Whether the product reads the same input as the product before it, so that backward adds the gradients of both
    inputs.
    """


def products(block: Block, settings: Shape, *, trained: bool) -> list[Product]:
    """List the matrix products of a layer's forward pass on one rank. ``trained``: its base weights get gradients.

    Casts to fp8: torchtitan casts hidden states before they are gathered over the tensor ranks, once for all products
    that read them (torchao ``float8_tensor_parallel.py``, PrepareFloat8ModuleInput, Float8RowwiseParallel; torch
    ``_functorch/compile_utils.py``, fx_graph_cse). Matrices that are replicated, such as those that compress latents,
    read this rank's tokens under Megatron, and all tokens under torchtitan (``models/deepseek_v3/sharding.py``).
    """
    tokens = settings.batch * settings.sequence
    tokens_of_rank = tokens // settings.tensor_parallel if settings.sequence_parallel else tokens
    gathers_latent_inputs = settings.latent_inputs == "gathered"
    layers: list[Product] = []
    previous = ("", "")  # sharding and group of the matrix before: column-parallel ones of a group share their input
    for module in (block.mixer, block.second_mixer, block.cross and block.cross.attention, block.mlp):
        for tensor in module.tensors if module is not None else ():
            local = local_tensor(
                tensor, module, settings.tensor_parallel, settings.expert_parallel, settings.expert_tensor_parallel
            )
            if not _is_matrix(tensor, local):
                continue
            name = tensor.name.removesuffix(".weight")
            outputs, inputs = local[-2:]
            if tensor.transposed:
                outputs, inputs = inputs, outputs
            if tensor.group == "experts" and isinstance(module, Moe):  # one product per expert, of its tokens
                rows, batch = _expert_tokens(module, settings, tokens), local[0] if len(local) == 3 else 1
                shares_input = False
                cast_inputs, cast_outputs = rows * inputs * batch, rows * outputs * batch
            else:
                own_tokens = tensor.shard == "none" and not (gathers_latent_inputs and tensor.group == "attention")
                rows, batch = tokens_of_rank if own_tokens else tokens, 1
                shares_input = previous == ("column", tensor.group) == (tensor.shard, tensor.group)
                cast_inputs, cast_outputs = inputs * rows, outputs * rows
                if settings.float8_tensors:  # torchao casts each rank's tokens, and an input once for all its readers
                    cast_inputs = inputs * (tokens_of_rank if tensor.shard == "column" else rows)
                    cast_inputs = 0 if shares_input else cast_inputs
                    cast_outputs = outputs * (tokens_of_rank if tensor.shard == "row" else rows)
                previous = (tensor.shard, tensor.group)
            layers.append(
                Product(
                    name=name,
                    group=tensor.group,
                    tokens=rows,
                    outputs=outputs,
                    inputs=inputs,
                    batch=batch,
                    trained=trained and settings.adapter is None and not is_frozen(name, settings.frozen_modules),
                    adapted=is_adapted(settings, tensor, module),
                    parameters=outputs * inputs * batch,
                    cast_input_elements=cast_inputs,
                    cast_output_elements=cast_outputs,
                    shard=tensor.shard,
                    shares_input=shares_input,
                )
            )
    return layers


def is_adapted(settings: Shape, tensor: ParameterTensor, component: object) -> bool:
    """Say whether the plan's adapter adds LoRA matrices to ``tensor``, a parameter of ``component`` (attention,
    ...).
    """
    if settings.adapter is None or not tensor.linear:
        return False
    name = tensor.name.removesuffix(".weight")
    if settings.adapted_module_name is not None:
        name = settings.adapted_module_name(tensor, component)
    return adapts(settings.adapter, name)


def _is_matrix(tensor: ParameterTensor, shape: tuple[int, ...]) -> bool:
    """Say whether a matrix product reads the parameter, whose shape on this rank is ``shape``."""
    return tensor.group == "experts" or (
        len(shape) == 2 and (tensor.linear or tensor.group in ("router", "mlp", "shared_experts"))
    )


def _expert_tokens(moe: Moe, settings: Shape, tokens: int) -> int:
    """Compute the rows that each local expert multiplies, on the rank that gets the most routed tokens.

    ``tokens``: of a micro-batch on this rank. The ranks of an expert-tensor group share each expert's matrices, so that
    each of them multiplies the tokens of all of them.
    """
    if isinstance(moe, DenseDispatchMoe):
        return tokens * settings.expert_parallel
    local_experts = max(1, moe.experts // settings.expert_parallel)
    if settings.sequence_parallel:
        tokens_per_rank = float(tokens // settings.tensor_parallel * settings.expert_tensor_parallel)
    else:  # tensor ranks have the same tokens: distinct ones come from the data-parallel ranks of the expert group
        expert_group = settings.expert_parallel * settings.expert_tensor_parallel
        data_ranks = max(1, expert_group // settings.tensor_parallel)
        tokens_per_rank = tokens * data_ranks / settings.expert_parallel
    imbalance = settings.expert_imbalance if settings.expert_parallel > 1 else 1.0
    return max(1, round(tokens_per_rank * moe.experts_per_token * imbalance / local_experts))


def projections(linear: list[Product]) -> list[Product]:
    """Return the layer's products ``linear``, in which consecutive products of q, k and v are merged into one.

    torchtitan's selective recompute counts them so.
    """

    def projects_qkv(product: Product) -> bool:
        return product.group == "attention" and _is_qkv(product)

    merged: list[Product] = []
    for product in linear:
        if merged and projects_qkv(product) and projects_qkv(merged[-1]):
            last = merged[-1]
            merged[-1] = last._replace(outputs=last.outputs + product.outputs)
        else:
            merged.append(product)
    return merged


def _is_qkv(product: Product) -> bool:
    return product.name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj")
