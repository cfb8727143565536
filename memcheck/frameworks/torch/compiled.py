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
        return _Backward(tape, sizes, saved).run(weights, box)

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


class _Backward(Record):
    """The backward of a compiled block in two parts. A part's local variables are buffers that are freed at its end."""

    tape: Tape
    sizes: _Sizes
    saved: dict[str, Storage]
    """The forward's tensors by name. AOTAutograd passes boxed arguments: each is freed after its last use."""

    def run(self, weights: list[Parameter], box: list[Storage]) -> list[Storage | None]:
        """Run the backward and return the gradients of the block's input and of ``weights``, in their order.

        ``box``: holds the output gradient.
        """
        gradients = [self._weight_gradient(norm) for norm in weights[:2]]
        residual_gradient, mlp_gradients = self._feed_forward(weights[4:], box)
        input_gradient, attention_gradients = self._attention(weights[2:4])
        del residual_gradient  # the first norm's backward has added it
        self.saved.clear()
        return [input_gradient, *gradients, *attention_gradients, *mlp_gradients]

    def _feed_forward(self, weights: list[Parameter], box: list[Storage]) -> tuple[Storage, list[Storage]]:
        """Run from the block's output to the second norm; return the residual's gradient, and those of w1, w3, w2.

        ``weights``: w1, w3, w2. ``box``: holds the output gradient, which the norm's backward reads last.
        """
        hidden, width = self.sizes.hidden, self.sizes.width
        w1, w3, w2 = weights
        projected, normed = self._saved_or_again("wo", hidden), self._saved_or_again("hidden", hidden)
        up, product = self._saved_or_again("w3", width), self._saved_or_again("product", width)
        w2_gradient = self._weight_gradient(w2)
        product_gradient = self._new(width, "w2 dX")
        del product
        gate_gradient, up_gradient = self._new(width, "w1 gradient"), self._new(width, "w3 gradient")
        del product_gradient, up
        self.saved.pop("w1")
        w3_gradient = self._weight_gradient(w3)
        through_w3 = self._new(hidden, "w3 dX")
        del up_gradient
        w1_gradient = self._weight_gradient(w1)
        through_w1 = self._new(hidden, "w1 dX")
        del gate_gradient, normed
        residual_gradient = self._new(hidden, "norm backward")
        box.clear()
        del through_w1, through_w3, projected
        return residual_gradient, [w1_gradient, w3_gradient, w2_gradient]

    def _attention(self, weights: list[Parameter]) -> tuple[Storage, list[Storage]]:
        """Run from the output projection to the first norm; return the input's gradient, and those of wqkv, wo."""
        hidden, query, keys = self.sizes.hidden, self.sizes.query, self.sizes.keys
        wqkv, wo = weights
        wo_gradient = self._weight_gradient(wo)
        attention_gradient = self._new(query, "wo dX")
        q, k, v = (self._saved_or_again(name, columns) for name, columns in (("q", query), ("k", keys), ("v", keys)))
        self.saved.pop("qkv", None)
        qkv_gradients = [self._new(columns, "attention backward") for columns in (query, keys, keys)]
        del attention_gradient, q, k, v
        del self.saved["attention"], self.saved["logsumexp"]
        joined_gradient = self._new(self.sizes.projected, "qkv gradient")
        del qkv_gradients
        normed = self._saved_or_again("normed", hidden)
        wqkv_gradient = self._weight_gradient(wqkv)
        through_wqkv = self._new(hidden, "wqkv dX")
        del normed, joined_gradient
        input_gradient = self._new(hidden, "block input gradient")
        del through_wqkv
        return input_gradient, [wqkv_gradient, wo_gradient]

    def _new(self, columns: int, label: str) -> Storage:
        """Allocate a buffer (tokens, columns)."""
        return self.tape.new((self.sizes.tokens, columns), self.sizes.dtype, label)

    def _weight_gradient(self, weight: Parameter) -> Storage:
        """Allocate the gradient of a weight."""
        return self.tape.new(weight.shape, weight.dtype, weight.name + " dW")

    def _saved_or_again(self, name: str, columns: int) -> Storage:
        """Take a tensor (tokens, columns) out of the saved ones, or compute it again if the forward did not save it."""
        return self.saved.pop(name) if name in self.saved else self._new(columns, f"{name}, again")
