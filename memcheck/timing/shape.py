"""What of a job decides the cost of a layer, and the matrix products that it comes to."""

from __future__ import annotations

from memcheck.accounts.state import local_tensor
from memcheck.autograd.context import Adapter, adapts, is_frozen
from memcheck.models.feed_forward_types import DenseDispatchMoe
from memcheck.models.types import Block, Moe, ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from memcheck.timing.towers import TowerShape


class Shape(Record):
    """The settings of a job that decide the time of a layer; hashable, as the key of the cost caches."""

    batch: int
    sequence: int
    """Tokens per sequence on this rank."""
    context_parallel: int
    tensor_parallel: int
    sequence_parallel: bool
    expert_parallel: int
    expert_tensor_parallel: int
    item_bytes: int
    """Bytes of an element of activations."""
    autocast: bool
    fp8: bool
    fused: bool
    attention: str
    adapter: Adapter | None
    frozen_modules: tuple[str, ...]
    expert_imbalance: float
    recompute: str
    """``none`` | ``selective`` | ``full``."""
    recompute_modules: tuple[str, ...]
    """What selective recompute runs again; empty where it chooses among operators."""
    head_sharded: bool
    """The loss runs on vocabulary shards."""
    loss_kind: str
    loss_chunks: int
    upcast: bool
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
    group: str
    tokens: int
    outputs: int
    inputs: int
    batch: int
    trained: bool
    adapted: bool
    parameters: int
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


def products(block: Block, s: Shape, *, trained: bool) -> list[Product]:
    """List the matrix products of a layer's forward pass on one rank. ``trained``: its base weights get gradients.

    What fp8 casts: torchtitan casts before hidden states are gathered over the tensor ranks, and once for all products
    that read them (torchao ``float8_tensor_parallel.py``, PrepareFloat8ModuleInput, Float8RowwiseParallel), and
    compiled graphs have equal casts but once (torch ``_functorch/compile_utils.py``, fx_graph_cse).

    Whole matrices of attention, those that compress latents, read each rank's own tokens under Megatron, and the
    gathered ones under torchtitan (``models/deepseek_v3/sharding.py``: ``x`` is gathered, wq_a, wkv_a are replicated).
    """
    tokens = s.batch * s.sequence
    own = tokens // s.tensor_parallel if s.sequence_parallel else tokens
    once, gathered = s.float8_tensors, s.latent_inputs == "gathered"
    found: list[Product] = []
    before = ("", "")
    for component in (block.mixer, block.second_mixer, block.cross and block.cross.attention, block.mlp):
        for t in component.tensors if component is not None else ():
            shape = local_tensor(t, component, s.tensor_parallel, s.expert_parallel, s.expert_tensor_parallel)
            if not _is_matrix(t, shape):
                continue
            name = t.name.removesuffix(".weight")
            adapted = is_adapted(s, t, component)
            learns = trained and s.adapter is None and not is_frozen(name, s.frozen_modules)
            if t.group == "experts" and isinstance(component, Moe):
                rows, times = _expert_tokens(component, s, tokens), shape[0] if len(shape) == 3 else 1
                outputs, inputs = shape[-2:][::-1] if t.transposed else shape[-2:]
                shares, given, made = False, rows * inputs * times, rows * outputs * times
            else:
                rows = own if t.shard == "none" and not (gathered and t.group == "attention") else tokens
                times = 1
                outputs, inputs = shape[::-1] if t.transposed else shape
                shares = before == ("column", t.group) == (t.shard, t.group)
                given = 0 if once and shares else inputs * (own if once and t.shard == "column" else rows)
                made = outputs * (own if once and t.shard == "row" else rows)
                before = (t.shard, t.group)
            product = Product(
                name=name,
                group=t.group,
                tokens=rows,
                outputs=outputs,
                inputs=inputs,
                batch=times,
                trained=learns,
                adapted=adapted,
                parameters=outputs * inputs * times,
                cast_input_elements=given,
                cast_output_elements=made,
                shard=t.shard,
                shares_input=shares,
            )
            found.append(product)
    return found


def is_adapted(s: Shape, t: ParameterTensor, component: object) -> bool:
    """Whether a component's matrix has an adapter."""
    if s.adapter is None or not t.linear:
        return False
    return adapts(
        s.adapter,
        t.name.removesuffix(".weight") if s.adapted_module_name is None else s.adapted_module_name(t, component),
    )


def _is_matrix(t: ParameterTensor, shape: tuple[int, ...]) -> bool:
    return t.group == "experts" or (len(shape) == 2 and (t.linear or t.group in ("router", "mlp", "shared_experts")))


def _expert_tokens(m: Moe, s: Shape, tokens: int) -> int:
    """Compute the rows that each local expert multiplies, on the rank that gets the most routed tokens."""
    if isinstance(m, DenseDispatchMoe):
        return tokens * s.expert_parallel
    local = max(1, m.experts // s.expert_parallel)
    # every rank of a group that shares an expert multiplies the tokens of all of them with its part of it
    if s.sequence_parallel:
        source = float(tokens // s.tensor_parallel * s.expert_tensor_parallel)
    else:  # tensor ranks have the same tokens
        source = tokens * max(1, s.expert_parallel * s.expert_tensor_parallel // s.tensor_parallel) / s.expert_parallel
    imbalance = s.expert_imbalance if s.expert_parallel > 1 else 1.0
    return max(1, round(source * m.experts_per_token * imbalance / local))


def projections(linear: list[Product]) -> list[Product]:
    """Merge the products of q, k and v into one each, as torchtitan counts them."""
    merged: list[Product] = []
    for p in linear:
        if p.group == "attention" and merged and merged[-1].group == "attention" and _is_qkv(p) and _is_qkv(merged[-1]):
            last = merged[-1]
            merged[-1] = last._replace(outputs=last.outputs + p.outputs)
        else:
            merged.append(p)
    return merged


def _is_qkv(p: Product) -> bool:
    return p.name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj")
