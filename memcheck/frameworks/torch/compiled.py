"""A dense Llama-like block as torch.compile runs it: what AOTAutograd's min-cut partitioner keeps for backward.

Source: torch 2.13 ``_functorch/partitioners.py`` (min_cut_rematerialization_partition), run on the joint graph of the
block: tests/frameworks/torch/compiled_blocks.json has the tensors that it kept. Without checkpointing it computes silu
and the second residual again, and keeps the inputs of all matrix products, which backward has to read as a whole.
Under SelectiveAC it keeps what the policy says, less the last product's output, which backward does not read.

Inductor fuses elementwise operations into one kernel: only what a matrix product, attention or the graph's end reads
is a tensor. Other blocks (experts, latent attention, norms on queries and keys, tensor parallelism) have not been
traced and count as uncompiled ones, which keep more.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import Node, Parameter, Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Block, Mlp, ParameterTensor
from memcheck.record import Record


def is_traced(block: Block, setting: Setting) -> bool:
    """Return whether the block is a plain Llama block, whose partition by AOTAutograd was traced.

    That is: softmax attention without biases, sinks or norms on queries, a gated MLP, RMSNorms, and all weights
    trained.
    """
    attention, mlp = block.mixer, block.mlp
    if not isinstance(attention, Attention) or not isinstance(mlp, Mlp):
        return False
    has_extra_steps = attention.query_norm is not None or attention.sinks or attention.softcap
    has_biases = attention.qkv_bias or attention.out_bias or mlp.bias
    is_llama = attention.rotary_dim > 0 and mlp.gated and not block.parallel and not has_extra_steps and not has_biases
    layer_norms = (block.input_norm, block.mlp_norm)
    all_rmsnorm = all(layer_norm is not None and layer_norm.kind == "rmsnorm" for layer_norm in layer_norms)
    fully_trained = setting.trained and not setting.frozen_modules and setting.adapter is None
    return is_llama and all_rmsnorm and fully_trained and setting.tensor_parallel == 1


class _Sizes(Record):
    tokens: int
    hidden: int
    query: int
    keys: int
    """Elements of a token's keys, and of its values, as attention reads them."""
    projected: int
    """Elements of a token's queries, keys and values together, as they are projected."""
    width: int
    """Elements of a token in the middle of the feed-forward network."""
    dtype: str


def compiled_block(ctx: Context, block: Block, x: Value, mode: str, *, repeated: bool = False) -> Value:
    """Run a dense transformer block that torch.compile has made one graph: one autograd node for all of it.

    ``x``: [tokens, hidden], as is the result. ``mode``: recompute, ``none`` or ``selective``. ``repeated``: keys and
    values are repeated for every query head, and saved so.
    """
    tape, attention, mlp = ctx.tape, block.mixer, block.mlp
    if not isinstance(attention, Attention) or not isinstance(mlp, Mlp):
        raise TypeError(block)
    width = mlp.tensors[-1].shape[1]
    heads = attention.heads if repeated else attention.kv_heads
    projected = (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    sizes = _Sizes(
        tokens=ctx.tokens,
        hidden=ctx.hidden,
        query=attention.heads * attention.head_dim,
        keys=heads * attention.head_dim,
        projected=projected,
        width=width,
        dtype=x.dtype,
    )
    weights = _weights(ctx, attention, mlp)
    forward_variables, saved = _forward(tape, sizes, attention, mode)
    out = tape.value((sizes.tokens, sizes.hidden), sizes.dtype, "residual")
    block_input = x.storage

    def run(box: list[Storage]) -> list[Storage | None]:
        return _backward(tape, sizes, weights, saved, box)

    del forward_variables
    out = tape.record(out, (x, *(tape.parameter(weight) for weight in weights)), run, saves=(block_input,))
    if isinstance(out.origin, Node):
        out.origin.hands_over_gradient = True
    return out


def _weights(ctx: Context, attention: Attention, mlp: Mlp) -> list[Parameter]:
    """Return the block's parameters in the order of the compiled graph: two norms, qkv, wo, w1, w3, w2."""
    *qkv, wo = linear_tensors(attention.tensors)
    qkv_rows, inputs = sum(t.shape[0] for t in qkv), qkv[0].shape[1]
    wqkv = ParameterTensor("wqkv", (qkv_rows, inputs), "attention", linear=True)
    matrices = [wqkv, wo, *_gated_matrices(mlp)]
    norms = [ctx.parameter(name, (ctx.hidden,)) for name in ("attention_norm", "ffn_norm")]
    return norms + [ctx.parameter(t.name.removesuffix(".weight"), t.shape) for t in matrices]


def _gated_matrices(mlp: Mlp) -> list[ParameterTensor]:
    """List w1, w3, w2: the model code that is compiled has one each, also where a checkpoint holds the first two as one
    (torchtune/models/phi3/_component_builders.py, ``phi3_mlp``).
    """
    *gate_and_up, down = linear_tensors(mlp.tensors)
    if len(gate_and_up) == 1 and mlp.gated:  # one matrix, whose halves are gate and up
        (fused,) = gate_and_up
        rows, columns = fused.shape
        gate_and_up = [fused._replace(name=name, shape=(rows // 2, columns)) for name in ("gate_proj", "up_proj")]
    if len(gate_and_up) != 2:
        raise UnsupportedError(
            "memcheck has no model of a compiled layer whose feed-forward network has no gate",
            "leave out training.compile to get the figure without it",
            "/training/compile",
        )
    return [*gate_and_up, down]


def _forward(tape: Tape, sizes: _Sizes, attention: Attention, mode: str) -> tuple[list[Storage], dict[str, Storage]]:
    """Allocate the buffers of a compiled block's forward, in the order of its graph.

    ``sizes``: columns of each tensor. Returns the buffers that live until the block's output exists, and those that are
    saved for backward by name: with ``mode`` ``selective`` only those that the backward graph cannot recompute cheaply.
    """

    def new(columns: int, label: str, dtype: str = sizes.dtype) -> Storage:
        return tape.new((sizes.tokens, columns), dtype, label)

    # attention: norm, one matrix for q, k and v, the kernel
    saved: dict[str, Storage] = {}
    normed = new(sizes.hidden, "norm")
    qkv = new(sizes.projected, "qkv")
    if mode == "none":
        saved["normed"] = normed
    del normed
    q, k, v = new(sizes.query, "q"), new(sizes.keys, "k"), new(sizes.keys, "v")
    saved["attention"] = new(sizes.query, "varlen attention")
    saved["logsumexp"] = tape.new((sizes.tokens, attention.heads), "fp32", "varlen attention logsumexp")
    if mode == "none":
        saved.update(q=q, k=k, v=v)
    else:
        saved["qkv"] = qkv
    del q, k, v, qkv
    # the output projection, the second norm and the MLP
    projected = new(sizes.hidden, "wo")
    normed = new(sizes.hidden, "norm")
    saved["w1"] = new(sizes.width, "w1")
    third = new(sizes.width, "w3")
    product = new(sizes.width, "silu * w3")
    if mode == "none":
        statistics = {f"rstd {i}": tape.new((sizes.tokens, 1), "fp32", "rstd") for i in (1, 2)}
        saved.update(statistics, wo=projected, hidden=normed, w3=third, product=product)
    del third
    return [normed, projected, product, new(sizes.hidden, "w2")], saved


def _backward(
    tape: Tape, sizes: _Sizes, weights: list[Parameter], saved: dict[str, Storage], box: list[Storage]
) -> list[Storage | None]:
    """Run a compiled block's backward: MLP, second norm, attention, first norm; return the gradients of x and weights.

    ``weights``: both norms, wqkv, wo, w1, w3, w2. ``saved``: the forward's tensors by name, each freed after its last
    use, because AOTAutograd passes boxed arguments; what is not there is recomputed. ``box``: holds the output
    gradient.
    """

    def new(columns: int, label: str) -> Storage:
        return tape.new((sizes.tokens, columns), sizes.dtype, label)

    norm1, norm2, wqkv, wo, w1, w3, w2 = weights

    def weight_gradient(weight: Parameter) -> Storage:
        return tape.new(weight.shape, weight.dtype, weight.name + " dW")

    def saved_or_recomputed(name: str, columns: int) -> Storage:
        return saved.pop(name) if name in saved else new(columns, f"{name}, again")

    # the MLP, of which up is recomputed if it was not saved
    norm1_gradient, norm2_gradient = weight_gradient(norm1), weight_gradient(norm2)
    projected = saved_or_recomputed("wo", sizes.hidden)
    hidden = saved_or_recomputed("hidden", sizes.hidden)
    up = saved_or_recomputed("w3", sizes.width)
    product = saved_or_recomputed("product", sizes.width)
    w2_gradient = weight_gradient(w2)
    product_gradient = new(sizes.width, "w2 dX")
    del product
    gate_gradient, up_gradient = new(sizes.width, "w1 gradient"), new(sizes.width, "w3 gradient")
    del product_gradient, up
    saved.pop("w1")
    w3_gradient = weight_gradient(w3)
    through_w3 = new(sizes.hidden, "w3 dX")
    del up_gradient
    w1_gradient = weight_gradient(w1)
    through_w1 = new(sizes.hidden, "w1 dX")
    del gate_gradient, hidden
    residual_gradient = new(sizes.hidden, "norm backward")
    box.clear()
    del through_w1, through_w3, projected
    # attention, from the output projection to the joined q, k and v
    wo_gradient = weight_gradient(wo)
    attention_gradient = new(sizes.query, "wo dX")
    q = saved_or_recomputed("q", sizes.query)
    k, v = saved_or_recomputed("k", sizes.keys), saved_or_recomputed("v", sizes.keys)
    saved.pop("qkv", q)
    qkv_gradients = [new(columns, "attention backward") for columns in (sizes.query, sizes.keys, sizes.keys)]
    del attention_gradient, q, k, v
    del saved["attention"], saved["logsumexp"]
    joined_gradient = new(sizes.projected, "qkv gradient")
    del qkv_gradients
    normed = saved_or_recomputed("normed", sizes.hidden)
    wqkv_gradient = weight_gradient(wqkv)
    through_wqkv = new(sizes.hidden, "wqkv dX")
    del normed, joined_gradient
    input_gradient = new(sizes.hidden, "block input gradient")
    del through_wqkv, residual_gradient
    saved.clear()
    mlp_gradients = [w1_gradient, w3_gradient, w2_gradient]
    return [input_gradient, norm1_gradient, norm2_gradient, wqkv_gradient, wo_gradient, *mlp_gradients]
