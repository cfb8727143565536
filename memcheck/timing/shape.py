"""What of a job decides the cost of a layer, and the matrix products that it comes to.

Bytes that a layer's element-wise operations read and write in device memory, per token.

Counted from the code that runs: what each operation reads and writes, at the width of its operands. transformers'
RMSNorm is ten operations on an fp32 copy (``models/llama/modeling_llama.py``); torchtitan's is one kernel
(``torch.nn.RMSNorm``); Transformer Engine and ``torch.compile`` read a tensor once and write what the next product
needs.
Backward passes: each operation's gradient reads the incoming gradient and what was saved, and writes one gradient per
input.
"""

from __future__ import annotations

from memcheck.accounts.state import local_tensor
from memcheck.autograd.context import Adapter, adapts, is_frozen
from memcheck.autograd.tensor import ceil_div
from memcheck.models.module_types import DenseDispatchMoe
from memcheck.models.types import Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm, ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from memcheck.timing.model import TowerShape


class Shape(Record):
    """The settings of a job that decide the time of a layer; hashable, as the key of the cost caches."""

    batch: int
    """Sequences of one micro-batch."""
    sequence: int
    """Tokens per sequence on this rank: divided by context parallelism. Sequence parallelism does not count, as
    attention and the matrices read the gathered tokens of all tensor ranks."""
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
    fp8_products: bool
    """Linear layers multiply in fp8."""
    fuses_elementwise: bool
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
    loss_is_vocab_parallel: bool
    """The loss runs on vocabulary shards."""
    loss_kind: str
    """Kind of loss (``loss.kind`` of the plan)."""
    loss_chunks: int
    """Pieces of a chunked loss."""
    upcasts_logits: bool
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
    latent_input_tokens: str = "own"
    """What matrices that compress latents read, as :class:`memcheck.frameworks.registry.Timing` has it."""
    uses_torchao_float8: bool = False
    """fp8 is torchao's."""
    recompute_selects_operators: bool = False
    """Selective recompute chooses among operators: it keeps every second matrix product, and attention."""
    experts_have_own_groups: bool = False
    """Routed tokens go to the ranks of expert groups of their own; False: to the tensor ranks."""
    fp8_saved_input: bool = False
    """The activation function keeps its input in fp8 (Megatron's ``activation_func_fp8_input_store``)."""
    has_mtp: bool = False
    """Megatron's multi-token prediction (``mtp_num_layers``)."""
    adapted_module_name: Callable[[ParameterTensor, object], str] | None = None
    """What adapters' targets call a layer (:class:`memcheck.frameworks.registry.Timing`)."""
    tower_shape: TowerShape | None = None
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
    equal_products: int
    """How many such products run at once: the layer's experts on this rank, else 1."""
    trained: bool
    """The weight gets a gradient."""
    adapted: bool
    """LoRA matrices are added to it."""
    parameters: int
    """Elements of the weights on this rank."""
    cast_input_elements: int
    """Elements of the input that are cast to fp8 in the forward."""
    cast_output_elements: int
    """Elements of the output's gradient that are cast to fp8 in the backward."""
    shard: str
    """``column`` | ``row`` | ``none``."""
    shares_input: bool
    """Whether the product reads the same input as the product before it, so that backward adds the gradients of both
    inputs.
    """


def products(block: Block, settings: Shape, *, trained: bool) -> list[Product]:
    """List the matrix products of a layer's forward pass on one rank. ``trained``: its base weights get gradients."""
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
                expert_rows = _expert_tokens(module, settings, settings.batch * settings.sequence)
                rows, batch, shares_input = ProductRows(expert_rows, expert_rows, expert_rows), 1, False
                if len(local) == 3:
                    batch = local[0]
            else:
                shares_input = tensor.shard == "column" and previous == ("column", tensor.group)
                previous = (tensor.shard, tensor.group)
                rows, batch = _product_rows(tensor, settings, shares_input=shares_input), 1
            layers.append(
                Product(
                    name=name,
                    group=tensor.group,
                    tokens=rows.multiplied,
                    outputs=outputs,
                    inputs=inputs,
                    equal_products=batch,
                    trained=trained and settings.adapter is None and not is_frozen(name, settings.frozen_modules),
                    adapted=is_adapted(settings, tensor, module),
                    parameters=outputs * inputs * batch,
                    cast_input_elements=rows.cast_inputs * inputs * batch,
                    cast_output_elements=rows.cast_outputs * outputs * batch,
                    shard=tensor.shard,
                    shares_input=shares_input,
                )
            )
    return layers


class ProductRows(Record):
    """Rows (tokens) of one matrix product on one rank."""

    multiplied: int
    cast_inputs: int
    """Rows of the input that fp8 casts in forward."""
    cast_outputs: int
    """Rows of the output's gradient that fp8 casts in backward."""


def _product_rows(tensor: ParameterTensor, settings: Shape, *, shares_input: bool) -> ProductRows:
    """Return the rows of a product outside experts. ``shares_input``: the product before it has read the same input.

    Matrices that are replicated, such as those that compress latents, read this rank's tokens under Megatron, and all
    tokens under torchtitan (``models/deepseek_v3/sharding.py``). torchtitan casts hidden states to fp8 before they are
    gathered over the tensor ranks, once for all products that read them (torchao ``float8_tensor_parallel.py``,
    PrepareFloat8ModuleInput, Float8RowwiseParallel; torch ``_functorch/compile_utils.py``, fx_graph_cse).
    """
    tokens = settings.batch * settings.sequence
    tokens_of_rank = tokens // settings.tensor_parallel if settings.sequence_parallel else tokens
    gathers_input = settings.latent_input_tokens == "gathered" and tensor.group == "attention"
    rows = tokens_of_rank if tensor.shard == "none" and not gathers_input else tokens
    if not settings.uses_torchao_float8:
        return ProductRows(rows, rows, rows)
    cast_inputs = tokens_of_rank if tensor.shard == "column" else rows
    cast_outputs = tokens_of_rank if tensor.shard == "row" else rows
    return ProductRows(multiplied=rows, cast_inputs=0 if shares_input else cast_inputs, cast_outputs=cast_outputs)


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


HALF = 2.0
"""Bytes of one read or write of a 16-bit element."""
FULL = 4.0
"""Bytes of one read or write of an fp32 element."""
CAST = HALF + FULL
"""Bytes per element of a cast between 16 bits and fp32: one read, one write."""
UNFUSED_NORM_FP32 = 7 * FULL
"""Bytes per element of transformers' RMSNorm on an fp32 stream (``LlamaRMSNorm.forward``): square (2 accesses), mean
(1), product with its inverse root (2), product with the weight (2)."""
UNFUSED_NORM = CAST + 5 * FULL + CAST + 2 * HALF
"""Bytes per element of the same norm on a 16-bit stream: a cast to fp32, square, mean and product with its inverse root
in fp32, a cast back, and the product with the weight in 16 bits."""
FUSED_ROTARY = 2 * HALF
"""Bytes per rotated element in one kernel: one read, one write."""
UNFUSED_ROTARY = 9 * HALF
"""Bytes per rotated element in separate operations: product with cos (2 accesses), swapped halves (2), product with sin
(2), sum (3)."""
NEW_GELU_OPERATORS = 8
"""Element-wise operators of transformers' ``NewGELUActivation``."""
SOFTMAX_ACCESSES = 5
"""Reads and writes of an fp32 copy of the logits by the vocabulary-parallel loss: maximum, difference, exponential and
sum."""
ROUTING = 4 * HALF
"""Bytes per element of a routed token: gathered for its expert, then weighted and summed; a read and a write each."""


class PassBytes(Record):
    """Bytes that a forward pass and its backward pass read and write, per token or per logit."""

    forward_bytes: float = 0.0
    backward_bytes: float = 0.0

    def plus(self, other: PassBytes) -> PassBytes:
        """Return the sum of both, pass by pass."""
        return PassBytes(self.forward_bytes + other.forward_bytes, self.backward_bytes + other.backward_bytes)


NOTHING = PassBytes()


class Traffic(Record):
    """Bytes that the element-wise operations of one layer move per token."""

    stream: PassBytes
    """On the residual stream: divided by the tensor ranks under sequence parallelism."""
    inner: PassBytes
    """Inside attention and feed-forward, whole model: divided by the tensor ranks."""
    experts: PassBytes = NOTHING
    """Per token and chosen expert."""


def block_traffic(block: Block, hidden: int, *, fused: bool, fused_norms: bool, item_bytes: int) -> Traffic:
    """Compute the bytes per token that the element-wise operations of one layer read and write.

    ``fused``: the layer is compiled, or runs in Transformer Engine. ``fused_norms``: a norm is one kernel anyway.
    ``item_bytes``: bytes per element of the residual stream.
    """
    one_kernel = fused or fused_norms
    stream = _residual_additions(block, hidden, item_bytes, fused=fused)
    for norm in block.norms:
        stream = stream.plus(_norm(norm, hidden, item_bytes, one_kernel=one_kernel))
    inner = _mixer(block.mixer, fused=fused, one_kernel=one_kernel)  # type: ignore[arg-type]  # towers are timed as text
    mlp = block.mlp
    if isinstance(mlp, Mlp):
        inner = inner.plus(_activation(mlp, mlp.width, fused=fused))
    if not isinstance(mlp, Moe):
        return Traffic(stream, inner)
    if mlp.shared.width:
        inner = inner.plus(_activation(mlp, mlp.shared.width, fused=fused))
    routing = PassBytes(ROUTING * hidden, ROUTING * hidden)
    return Traffic(stream, inner, experts=_activation(mlp, mlp.width, fused=fused).plus(routing))


def _residual_additions(block: Block, hidden: int, item_bytes: int, *, fused: bool) -> PassBytes:
    """Compute the bytes per token of adding the outputs of attention and of the MLP to the residual stream.

    An addition reads two tensors and writes one. ``fused``: the next norm reads the sum in the same kernel.
    """
    additions = len([half for half in (block.mixer, block.mlp) if half is not None])
    accesses = 2 if fused else 3
    return PassBytes(
        forward_bytes=float(additions * accesses * item_bytes * hidden),
        backward_bytes=float(additions * 3 * item_bytes * hidden),
    )


def _norm(norm: Norm, hidden: int, item_bytes: int, *, one_kernel: bool) -> PassBytes:
    """Compute the bytes per token that a norm reads and writes.

    ``one_kernel``: the norm is one kernel, not separate operations. ``item_bytes``: bytes per element of the stream.
    """
    width = max(hidden, norm.size * norm.rows)  # a norm of less than the stream, such as one per head, runs many times
    if one_kernel or norm.kind == "layernorm":  # one read and one write; backward reads input and gradient, writes one
        return PassBytes(forward_bytes=2.0 * item_bytes * width, backward_bytes=3.0 * item_bytes * width)
    forward = (UNFUSED_NORM if item_bytes == 2 else UNFUSED_NORM_FP32) * width
    return PassBytes(forward_bytes=forward, backward_bytes=2 * forward)


def _mixer(mixer: Attention | LatentAttention | Mixer | None, *, fused: bool, one_kernel: bool) -> PassBytes:
    """Compute the bytes per token of rotary embedding and of the norms of queries and keys.

    Latent attention concatenates queries and keys from two parts, which reads and writes them once more. A recurrent
    mixer is estimated as two reads and two writes per element of its width, and twice that in backward. ``one_kernel``:
    a norm is one kernel.
    """
    rotary_bytes = FUSED_ROTARY if fused else UNFUSED_ROTARY
    if isinstance(mixer, LatentAttention):
        rotated = mixer.heads * mixer.qk_rope_head_dim + mixer.qk_rope_head_dim  # of queries, and of the shared key
        queries_and_keys = 2 * mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
        both_ways = rotary_bytes * rotated + 2 * HALF * queries_and_keys
        return PassBytes(both_ways, both_ways)
    if isinstance(mixer, Mixer):
        return PassBytes(forward_bytes=4 * HALF * mixer.width, backward_bytes=8 * HALF * mixer.width)
    if mixer is None:
        return NOTHING
    width = (mixer.heads + mixer.kv_heads) * mixer.head_dim
    moved = NOTHING
    if mixer.rotary_dim:
        moved = PassBytes(rotary_bytes * width, rotary_bytes * width)
    if mixer.query_norm is not None and one_kernel:  # a read and a write; backward reads two tensors and writes one
        moved = moved.plus(PassBytes(forward_bytes=2 * HALF * width, backward_bytes=3 * HALF * width))
    elif mixer.query_norm is not None:
        moved = moved.plus(
            PassBytes(forward_bytes=float(UNFUSED_NORM * width), backward_bytes=2.0 * UNFUSED_NORM * width)
        )
    return moved


def _activation(mlp: Mlp | Moe, width: int, *, fused: bool) -> PassBytes:
    """Compute the bytes per token of ``act(gate) * up``, or of ``act(up)`` without a gate, on 16-bit elements.

    ``width``: elements per token of the up product. ``fused``: activation and product are one kernel.
    """
    if mlp.gated and fused:  # reads gate and up, writes the product; backward reads these and the gradient, writes two
        return PassBytes(forward_bytes=3 * HALF * width, backward_bytes=5 * HALF * width)
    if mlp.gated:  # the activation reads and writes, the product reads two tensors and writes one; backward 3 and 5
        return PassBytes(forward_bytes=5 * HALF * width, backward_bytes=8 * HALF * width)
    operators = NEW_GELU_OPERATORS if mlp.activation == "gelu_new" and not fused else 1
    # each operator reads and writes; its backward reads the gradient and the saved input, and writes one gradient
    return PassBytes(forward_bytes=2 * HALF * width * operators, backward_bytes=3 * HALF * width * operators)


def recomputed_traffic(block: Block, hidden: int, modules: tuple[str, ...], *, fused: bool) -> Traffic:
    """Compute the bytes per token that Megatron's ``recompute_modules`` move once more in backward.

    ``modules``: these modules. ``layernorm`` are norms that are not fused with a linear layer: before latent attention
    and before experts, and all norms without Transformer Engine. ``mla_up_proj`` also rotates and concatenates queries
    and keys (``multi_latent_attention.py``, qkv_up_proj_and_rope_apply). ``fused``: Transformer Engine's kernels run.
    """
    mixer, mlp = block.mixer, block.mlp
    stream = inner = experts = 0.0
    if "layernorm" in modules:
        separate_norms = []
        if not fused or isinstance(mixer, LatentAttention):
            separate_norms.append(block.input_norm)
        if not fused or isinstance(mlp, Moe):
            separate_norms.append(block.mlp_norm)
        for norm in separate_norms:
            if norm is not None:
                stream += _norm(norm, hidden, 2, one_kernel=True).forward_bytes
    if "mla_up_proj" in modules and isinstance(mixer, LatentAttention):
        inner += _mixer(mixer, fused=fused, one_kernel=True).forward_bytes
    if isinstance(mlp, Mlp) and "mlp" in modules:
        inner += _activation(mlp, mlp.width, fused=fused).forward_bytes
    if isinstance(mlp, Moe):
        if mlp.shared.width and ("moe" in modules or "shared_experts" in modules):
            inner += _activation(mlp, mlp.shared.width, fused=fused).forward_bytes
        if "moe" in modules or "moe_act" in modules:
            experts += _activation(mlp, mlp.width, fused=fused).forward_bytes
        if "moe" in modules:
            experts += ROUTING * hidden
    return Traffic(PassBytes(stream), PassBytes(inner), PassBytes(experts))


def activation_input_width(block: Block) -> int:
    """Count the elements per token of the input of a layer's activation function, routed experts left out.

    Gate and up are both inputs of a gated activation.
    """
    mlp = block.mlp
    width = 0
    if isinstance(mlp, Mlp):
        width = mlp.width
    elif isinstance(mlp, Moe):
        width = mlp.shared.width
    return 2 * width if mlp is not None and mlp.gated else width


def expert_activation_input_width(block: Block) -> int:
    """Count the elements of the activation function's input in a routed expert, per token that it gets; 0 without
    experts.
    """
    mlp = block.mlp
    if not isinstance(mlp, Moe):
        return 0
    return 2 * mlp.width if mlp.gated else mlp.width


def kv_width(mixer: object, *, tensor: int, repeats_kv_heads: bool) -> int:
    """Count the elements of one token's keys and values on one tensor-parallel rank; 0 where ``mixer`` has none.

    ``repeats_kv_heads``: keys and values are repeated for every query head.
    """
    if isinstance(mixer, Attention):
        heads = mixer.heads if repeats_kv_heads else mixer.kv_heads
        return 2 * ceil_div(heads, tensor) * mixer.head_dim
    if isinstance(mixer, LatentAttention):
        key_width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        return ceil_div(mixer.heads, tensor) * (key_width + mixer.v_head_dim)
    return 0


def merge_traffic(
    kind: str,
    mixer: Attention | LatentAttention | Mixer | None,
    ranks: int,
    *,
    tensor: int,
    fused: bool,
    repeats_kv_heads: bool,
) -> PassBytes:
    """Compute the bytes per token of merging the outputs of ring attention's ``ranks`` steps.

    ``kind``: whose ring runs, ``engine`` (Transformer Engine) or ``torch``; others merge nothing. ``tensor``: degree of
    tensor parallelism. ``repeats_kv_heads``: keys and values are repeated for every query head.
    """
    if isinstance(mixer, Attention):
        output_width = ceil_div(mixer.heads, tensor) * mixer.head_dim
    elif isinstance(mixer, LatentAttention):
        output_width = ceil_div(mixer.heads, tensor) * mixer.v_head_dim
    else:
        return NOTHING
    keys_values = kv_width(mixer, tensor=tensor, repeats_kv_heads=repeats_kv_heads)
    if kind == "engine":
        return _engine_merge(output_width, keys_values, ranks)
    if kind == "torch":
        return _torch_merge(output_width, keys_values, ranks, fused=fused)
    return NOTHING


def _engine_merge(output_width: int, keys_values: int, ranks: int) -> PassBytes:
    """Compute the bytes per token that Transformer Engine's ring moves to merge its steps.

    Forward: keys and values are concatenated, the first output is scaled, each other one scaled and added. Backward:
    they are copied once more, and each step's gradients of queries, keys and values are copied or added. Under the
    causal mask half of the other steps have half of the queries, and half of them half of the keys: three quarters of
    the elements on average. Widths are elements per token. Source: ``dot_product_attention/context_parallel.py``.
    """
    copy, add = 2 * HALF, 3 * HALF  # one read and one write; two reads and one write
    causal_share = 0.75
    added = add * causal_share * (ranks - 1)
    of_outputs = output_width * (copy + added)
    return PassBytes(
        forward_bytes=keys_values * copy + of_outputs, backward_bytes=keys_values * (copy + add + added) + of_outputs
    )


def _torch_merge(output_width: int, keys_values: int, ranks: int, *, fused: bool) -> PassBytes:
    """Compute the bytes per token that torch's ring moves to merge its steps. Widths are elements per token.

    Forward: the first output is cast to fp32, and the merged one back. Each other one is cast, subtracted, scaled and
    subtracted again; with half of the queries, half of that, and both halves are concatenated. ``fused``: one kernel
    reads the output and the sum, and writes the sum. Backward: gradients of queries, keys and values are summed in
    fp32, those of half of the queries concatenated, those of keys and values also copied to be sent. Source:
    ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``, _SDPAMerger.
    """
    add = CAST + FULL  # reads a 16-bit tensor and the fp32 sum, and writes the sum
    copy = 2 * FULL
    casts = 2 * CAST
    subtract = 3 * FULL
    whole = CAST + subtract + copy + subtract
    other_steps = ranks - 1
    merged = add if fused else (whole + whole / 2 + copy) / 2  # the mean of a whole step and a half one
    query_gradients = (add + add / 2 + copy) / 2
    return PassBytes(
        forward_bytes=output_width * (casts + other_steps * merged),
        backward_bytes=(output_width * query_gradients + keys_values * (add + copy)) * other_steps,
    )


def repeat_traffic(mixer: Attention | LatentAttention | Mixer | None, *, tensor: int, item_bytes: int) -> float:
    """Return the bytes per token of repeating keys and values for every query head, and of adding up their gradients
    again.
    """
    if not isinstance(mixer, Attention) or mixer.heads == mixer.kv_heads:
        return 0.0
    kv_heads, query_heads = ceil_div(mixer.kv_heads, tensor), ceil_div(mixer.heads, tensor)
    if query_heads <= kv_heads:
        return 0.0
    return 2.0 * item_bytes * (kv_heads + query_heads) * mixer.head_dim  # of keys, and of values


def loss_traffic(kind: str, *, fused: bool, upcast: bool) -> PassBytes:
    """Compute the bytes per logit that the loss reads and writes.

    ``kind``: the plan's loss. ``fused``: one kernel (Liger, Transformer Engine, compiled) writes and reads the logits,
    and in backward reads them and writes the gradient. ``upcast``: logits are cast to fp32 before the loss.
    """
    logits_written = HALF
    if fused or kind in ("fused-linear", "in-place"):
        return PassBytes(forward_bytes=logits_written + HALF, backward_bytes=2 * HALF)
    if kind == "vocab-parallel":  # backward: softmax minus one-hot, and its scaling
        return PassBytes(forward_bytes=logits_written + CAST + SOFTMAX_ACCESSES * FULL, backward_bytes=3 * FULL + CAST)
    item = FULL if upcast else HALF
    casts = CAST if upcast else 0.0
    log_softmax = 2 * item
    gradients = 4 * item  # of log-softmax: two reads and a write; of the one-hot target: a write
    return PassBytes(forward_bytes=logits_written + casts + log_softmax, backward_bytes=gradients + casts)
