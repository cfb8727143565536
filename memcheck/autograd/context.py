"""What the replay of one unit on one rank needs to know, and a check that it meets every parameter the rank holds.

The check keeps any part of a model from being counted as 0 bytes. Parameters that are met and held are counted in
elements, whole: on one rank, without adapters, of a short sequence. Layouts divide both in their own ways, and
frameworks fuse matrices that a checkpoint keeps apart; the sums stay equal.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memcheck.autograd.kernels import Weights
from memcheck.autograd.tensor import ITEM_BYTES, Dim, Leaf, Parameter, Storage, Tape, Value, ceil_div
from memcheck.autograd.weight_formats import WeightFormat
from memcheck.errors import UnsupportedError
from memcheck.models.module_types import ViewedTensor
from memcheck.models.parameters import block_tensors
from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.autograd.curve import Peak


class Style(Record):
    """Facts of a framework's model code. Hashable: curves are cached by it."""

    folder: str
    """The framework's folder in ``memcheck.frameworks``; its ``layers.py`` describes the framework's modules."""
    activation_layout: str
    """How activations lie: ``batch-first`` ([batch, sequence, hidden], along whose dim 1 a gather copies),
    ``sequence-first``, ``packed`` ([tokens, hidden]: softmax attention keeps nothing of a sequence by itself)."""
    source: str
    """What its forward passes were read from, as formulas name it."""
    uses_dtensor: bool = False
    """Tensor parallelism makes DTensors, a subclass; else shards are plain tensors."""
    runs_transformers_modules: bool = False
    """The framework runs the classes of transformers' modeling files, not modules of its own. Then the model makes
    attention masks once and hands them to its layers. Its forward has a variable for the embedded rows
    (``inputs_embeds``). With a chunked loss it returns hidden states, and the head runs after it. A tensor-parallel
    rank's embedding gradient has the whole table, as RowwiseParallel's has.
    """
    offload_buffers: int = 0
    """Inputs of checkpointed layers that stay on the GPU as buffers where checkpoints are offloaded to the host."""
    compiles_blocks: bool = False
    """torch.compile runs each block as a graph of its own."""
    compiled_losses: tuple[str, ...] = ()
    """Kinds of loss that torch.compile runs as one graph."""


if TYPE_CHECKING:

    class Stepping(Protocol):
        """An optimizer that steps in backward. Two that are equal do the same."""

        def temporaries(self, shape: tuple[int, ...], dtype: str) -> int:
            """Bytes that its step of one tensor takes for itself."""

        def __hash__(self) -> int:
            """Part of the key of a curve."""


class Adapter(Record):
    """The adapters of one part of a model, over base weights that may be stored quantised."""

    rank: int
    """Rank ``r``: A has the shape [r, inputs], B has [outputs, r]."""
    targets: str | tuple[str, ...]
    """peft's ``target_modules``: names of linear layers, or ``all-linear``."""
    dtype: str
    """The dtype in which the adapters are stored."""
    base_format: WeightFormat | None = None
    """The format in which the base weights are stored; None: they are not quantised."""
    peft_base_format: WeightFormat | None = None
    """The format of the base weights where peft adapts another library's layers; None: the framework has its own."""
    dropout: float = 0.0
    """Dropout of the adapter's input."""
    dora: bool = False
    """DoRA: each adapted matrix also has a learned magnitude per output."""
    target_parameters: tuple[str, ...] = ()
    """Stacked experts that are adapted by their parameters' names (``target_parameters``)."""
    expert_rank: int = 0
    """Rank of the adapters of stacked experts; 0: ``rank``."""
    quantizes_experts: bool = False
    """Experts are linear layers, whose weights are 4-bit as the others."""
    quantizes_stacked_experts: bool = False
    """Stacked experts are stored as the linear layers are, and are dequantised whole where a forward reads them."""
    compute_dtype: str | None = None
    """The dtype in which 4-bit products are computed; None: that of their input."""
    gathered_dtype: str | None = None
    """The dtype in which modules see the adapters; None: that in which they are stored."""
    peft_input_dtype: str | None = None
    """The dtype to which rows are cast before FSDP1 gathers the adapters, by themselves; None: as they are seen."""
    unquantized_modules: tuple[str, ...] = ()
    """Parts of the names of linear layers that are not quantised."""

    def stores_quantized(self, shape: tuple[int, ...]) -> bool:
        """Say whether a parameter of experts is stored as the linear layers are: stacked matrices, or whole
        layers of them.
        """
        return self.quantizes_experts or (self.quantizes_stacked_experts and len(shape) > 2)

    def format_of(self, name: str) -> WeightFormat | None:
        """Return the format in which the base weight of a linear layer is stored; None: it is not quantised."""
        return None if any(part in name for part in self.unquantized_modules) else self.base_format

    @property
    def module_dtype(self) -> str:
        """The dtype in which modules see the adapters."""
        return self.gathered_dtype or self.dtype


class Patched(Record):
    """Which modules of transformers' blocks Liger's kernels replace, and how its norm is made."""

    rope: bool = True
    """The rotation of queries and keys is Liger's."""
    rms_norm: bool = True
    """The layer's norms are Liger's."""
    glu: bool = True
    """The gated product of a feed-forward network (SwiGLU, GEGLU) is Liger's."""
    norm_in_place: bool = True
    """The norm's backward writes over its gradient; not in families with a norm after a branch."""
    head_norms: bool = True
    """Norms of queries and keys are Liger's, too, where the Trainer patches a model."""


class Setting(Record):
    """Everything that decides a unit's curve besides the unit itself. Hashable: curves are cached by it."""

    style: Style
    """The framework whose module code runs, as ``Framework.style``."""
    batch: int
    """Sequences per micro-batch on this rank."""
    sequence: int
    """Tokens per sequence on this rank, after context parallelism."""
    hidden: int
    """Width of the residual stream."""
    tensor_parallel: int = 1
    """Ranks that share each layer's matrices."""
    sequence_parallel: bool = False
    """The residual stream is divided over the tensor-parallel ranks, as well (Megatron's sequence parallelism)."""
    expert_parallel: int = 1
    """Ranks that share the experts of a layer, whole experts each."""
    expert_tensor_parallel: int = 1
    """Ranks that share the matrices of each expert."""
    param_dtype: str = "bf16"
    """Dtype of the weights that the modules see (FSDP's unsharded copy, or the parameters themselves)."""
    compute_dtype: str = "bf16"
    """Dtype of the residual stream that enters the unit."""
    autocast_dtype: str | None = None
    """Dtype of ``torch.autocast``; None: autocast is off."""
    attention: str = "sdpa"
    """The kernel of attention: ``sdpa`` | ``flash`` | ``flex`` | ``eager``."""
    reentrant: bool = False
    """Checkpointed units are checkpointed with ``use_reentrant=True``."""
    trained: bool = True
    """The base weights get gradients."""
    frozen_modules: tuple[str, ...] = ()
    """Names of modules inside the unit whose weights get no gradient."""
    has_grad: bool = False
    """Gradients of an earlier micro-batch exist, to which autograd adds the new ones."""
    grad_dtype: str | None = None
    """Dtype to which autograd casts new gradients; those that are added to existing ones stay as they are."""
    has_grad_hooks: bool = False
    """An engine runs a hook when a weight's gradient has arrived (DeepSpeed). The hook casts every gradient, also one
    that is added to an existing one, so that autograd casts none."""
    saves_linear_inputs: bool = False
    """Linear layers save their inputs even if their weights are frozen, as ZeRO-3's do (runtime/zero/linear.py)."""
    needs_input_gradient: bool = True
    """The unit's input gets a gradient, because something before the unit is trained."""
    holds_output_gradient: bool = False
    """The pipeline schedule keeps the gradient of the unit's output until the backward has ended."""
    input_is_counted_elsewhere: bool = False
    """The unit's input lives in a buffer that is counted elsewhere (a pipeline stage's receive buffer)."""
    adapter: Adapter | None = None
    """LoRA adapters of the unit's linear layers; None: there are none."""
    optimizer_in_backward: Stepping | None = None
    """How an optimizer steps each weight as its gradient arrives; None: the step follows the backward."""
    main_grad_dtype: str | None = None
    """Dtype of persistent gradient buffers that take the gradient in place of ``.grad`` (Megatron, DeepSpeed)."""
    expert_imbalance: float = 1.0
    """Tokens routed to the busiest expert-parallel rank, over the mean of all ranks."""
    dispatcher: str = ""
    """How tokens reach experts on other ranks under FSDP2; empty: in the framework's own way."""
    context_parallel: int = 1
    """Ranks that share one sequence; ``sequence`` is already divided by it."""
    ulysses: bool = False
    """Whether context-parallel ranks exchange tokens for heads around attention (Ulysses), instead of passing keys and
    values around a ring.
    """
    compiled: bool = False
    """torch.compile runs each block as a graph of its own."""
    recurrent_kernels: str = "fused"
    """Kernels of recurrent (state-space) layers: ``fused``, or ``fallback``, the code in plain PyTorch."""
    liger: Patched | None = None
    """Which of a block's modules are Liger's; None: none."""
    recomputes_all_to_all: bool = False
    """Selective recompute repeats the experts' all-to-alls instead of keeping the tokens that they brought."""
    options: tuple[tuple[str, object], ...] = ()
    """``training.options`` of the plan: the framework's own settings by name."""
    streams: int = 1
    """Residual streams that a layer reads and writes in parallel (hyper-connections, AltUp)."""
    images: int = 0
    """Images, or tiles of images, in a vision tower's batch. ``sequence`` counts the patches of all together."""
    rows_per_image: tuple[int, ...] = ()
    """Patches of each image where images differ in size; empty: all have the same number."""
    image_tokens: int = 0
    """Tokens of the language model that the projector makes of all patches."""
    tower_checkpointed: bool = False
    """A vision tower's layers are checkpointed, and so keep every tensor argument of their forward."""
    encoder_length: int = 0
    """Tokens per sequence of the encoder's output, which cross attention reads; 0: there is no encoder."""
    encoder_output_grad: bool = False
    """The encoder's output wants a gradient. In Inkling 2: the first of its streams does."""
    encoder_output_dtype: str | None = None
    """Dtype of the encoder's output; None: that of the residual stream."""
    starts_shared_gradients: bool = False
    """Backward reaches this layer first of its stack: gradients to which all layers add are allocated in it (of the
    encoder's output, of position biases)."""
    fp32_params: tuple[str, ...] = ()
    """Parts of the names of weights that modules see in fp32, whatever ``param_dtype`` is."""
    residual_dtype: str | None = None
    """Dtype of the residual stream; None: that of the weights. Under autocast a tower's convolution decides it."""
    casts_batch_features: bool = False
    """FSDP casts the batch's floating-point features to a narrower dtype (``cast_forward_inputs``)."""
    rotary_table_rows: int = 0
    """Rows of the model's rotary tables where FSDP2 casts what a layer is given (``cast_forward_inputs``); else 0."""

    def option(self, name: str, default: object = None) -> object:
        """Return the value of one of the framework's options."""
        for key, value in self.options:
            if key == name:
                return value
        return default

    @property
    def buffer_dtype(self) -> str:
        """Dtype of the model's own buffers: FSDP2 casts weights and what a layer is given, and leaves buffers alone."""
        return "fp32" if self.rotary_table_rows else self.param_dtype

    @property
    def uses_dtensor(self) -> bool:
        """Whether weights and activations are DTensors."""
        return self.tensor_parallel > 1 and self.style.uses_dtensor

    def for_later_micro_batches(self) -> Setting:
        """Return the setting of every micro-batch after the first, whose gradients are added to existing ones.

        Autograd casts new gradients alone, so that ``grad_dtype`` applies no more; a hook casts all of them.
        """
        return self._replace(has_grad=True, grad_dtype=self.grad_dtype if self.has_grad_hooks else None)


class Context:
    """The state of one unit's replay: its tape, its setting, its weights, and tensors that Python variables hold.

    A module's forward function takes a context as its first argument.
    """

    def __init__(self, tape: Tape, setting: Setting) -> None:
        """Set the sizes of a rank from the setting, with the symbols under which formulas show them."""
        self.tape = tape
        tape.has_grad_hooks, tape.saves_linear_inputs = setting.has_grad_hooks, setting.saves_linear_inputs
        self.setting = setting
        tp = setting.tensor_parallel
        self.tp = tp
        self.batch = Dim(setting.batch, "B")
        self.sequence = Dim(setting.sequence, "S")
        self.hidden = Dim(setting.hidden, "h")
        tokens = setting.batch * setting.sequence
        self.tokens = Dim(tokens, "T")
        self.residual_tokens = Dim(tokens // tp, "T/tp") if setting.sequence_parallel and tp > 1 else self.tokens
        """Tokens of the residual stream on this rank: divided under sequence parallelism."""
        self.parameters: list[Parameter] = []
        """Every weight of the unit: their gradients live as long as this context."""
        self.model_outputs: list[Value] = []
        """The model's output (logits), which the training loop still references during backward."""
        self.extra_outputs: list[Value] = []
        """Tensors that the unit returns in addition to its output, such as attention weights. The model's loop over its
        layers keeps them in a variable until the next layer returns."""
        self.attention_locals: list[Value] = []
        """Tensors that local variables of attention's forward hold until it returns."""
        self.unused_outputs: list[Value] = []
        """Tensors that attention returns and nothing reads: the layer assigns them to ``_``, which lives to its end."""
        self.checkpointed_modules: frozenset[str] = frozenset()
        """Modules of the layer that are checkpointed one by one, not with the whole layer."""
        self.rotary_tables: tuple[Storage, ...] = ()
        """cos and sin, if FSDP2 casts them for each layer (``cast_forward_inputs``); else empty."""
        self.pixel_values: Value | None = None
        """``pixel_values`` as FSDP has cast them for the root's forward."""
        self.position_biases: list[Value] = []
        """Position biases of attention scores that local variables of the layer's forward hold."""
        self.encoder_output: Value | None = None
        """The encoder's output, whose bytes are counted elsewhere."""
        self.inner_checkpoint_saved: list[Storage] = []
        """Tensors saved by a checkpoint that runs inside a checkpointed layer."""
        self.weights_of_later_layer = False
        """This layer runs with the weights of a later layer. Backward has passed that one, so their gradients exist."""
        self.own_adapters = False
        """Adapters are this layer's own although its base weights are another layer's."""
        self.weights_of_earlier_layer = False
        """This layer runs with the weights of an earlier layer, of which autocast already has copies."""
        self.final_norm_peak: Peak | None = None
        """The peak of the final norm in the head's forward. It counts as forward, the rest of the head as loss."""

    def parameter(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> Parameter:
        """Register a base weight of the unit. ``shape``: on this rank. ``dtype``: None: :meth:`dtype_of` its name."""
        s = self.setting
        trained = s.trained and not is_frozen(name, s.frozen_modules)
        return self.register(Parameter(name, shape, dtype or self.dtype_of(name), trained, has_grad=s.has_grad))

    def dtype_of(self, name: str) -> str:
        """Return the dtype in which modules see a base weight."""
        s = self.setting
        return "fp32" if s.fp32_params and any(part in name for part in s.fp32_params) else s.param_dtype

    def register(self, parameter: Parameter) -> Parameter:
        """Add a weight to the unit, and decide where its gradient goes.

        The gradient goes to an optimizer that steps in backward, to a persistent buffer, or to ``.grad``. It is cast on
        its way to ``.grad`` if the setting asks for a wider dtype.
        """
        parameter.shared_with_earlier, parameter.shared_with_later = (
            self.weights_of_earlier_layer,
            self.weights_of_later_layer,
        )
        if self.weights_of_later_layer:
            parameter.has_grad = True
            self.parameters.append(parameter)
            return parameter
        stepping = self.setting.optimizer_in_backward
        if stepping is not None:
            parameter.consume_gradient = self.step(stepping)
        elif self.setting.main_grad_dtype is not None:
            parameter.consume_gradient = _drop  # added into a persistent buffer that is counted with the states
        else:
            parameter.cast_to = wider(parameter.dtype, self.setting.grad_dtype)
        self.parameters.append(parameter)
        return parameter

    def step(self, stepping: Stepping) -> Callable[[Storage], None]:
        """Return the function that takes the gradient of a weight whose optimizer steps in backward.

        It runs the step, and the gradient dies. ``stepping``: the optimizer.
        """
        tape = self.tape

        def run(grad: Storage) -> None:
            size = stepping.temporaries(grad.shape, grad.dtype)
            temporary = tape.new((size,), "int8", "optimizer step in backward") if size else None
            del temporary

        return run

    def constant(self, tensor: ParameterTensor) -> Parameter:
        """A parameter that wants no gradient."""
        return self.register(
            Parameter(tensor.name, tensor.shape, self.dtype_of(tensor.name), requires_grad=False, has_grad=False)
        )

    def norm_weight(self, norm: Norm | None, name: str = "norm") -> tuple[Parameter | None, Parameter | None]:
        """Register weight and bias of a normalisation; None for one that it does not have, or if there is no norm."""
        if norm is None:
            return None, None
        shape = (norm.rows, norm.size) if norm.rows > 1 else (norm.size,)
        weight = self.parameter(name + ".weight", shape) if norm.weight else None
        bias = self.parameter(name + ".bias", shape) if norm.bias else None
        return weight, bias

    def replicated(self, tensor: ParameterTensor, bias: bool = False) -> Weights:
        """A linear layer that tensor parallelism leaves whole."""
        return self.weights(tensor._replace(shard="none"), bias)

    def weights(
        self,
        tensor: ParameterTensor,
        bias: bool,
        shape: tuple[int, int] | None = None,
        *,
        rows: int = 1,
        adaptable: bool = True,
    ) -> Weights:
        """Register the parameters of a linear layer on this rank, with its adapter or its fake quantizer.

        ``shape``: [outputs, inputs] before tensor parallelism; None: that of ``tensor``. ``rows``: the most ways in
        which tensor parallelism can cut its sharded dimension (key and value heads), 1: as many as there are ranks.
        ``adaptable``: adapters may wrap it if their targets name it.
        """
        outputs, inputs = self._shard_shape(tensor, shape, rows)
        name = tensor.name.removesuffix(".weight")
        base = self.parameter(name, (outputs, inputs))
        base.used_as_view = isinstance(tensor, ViewedTensor)
        bias_parameter = self.parameter(name + ".bias", (outputs,)) if bias else None
        layer = Weights(base, bias_parameter)
        adapter = self.setting.adapter
        if adapter is None:
            return self.faked(layer)
        is_adapted = adaptable and adapts(adapter, name)
        if is_adapted:
            layer.quantized = adapter.format_of(name) is not None
            layer = self.adapted(name, layer, adapter)
        elif adapter.peft_base_format and tensor.linear:
            layer.quantized = (
                adapter.format_of(name) is not None
            )  # libraries such as bitsandbytes quantise layers without adapters
        if layer.quantized:
            layer.compute_dtype, layer.peft_base_format = adapter.compute_dtype, adapter.peft_base_format
        return self.faked(layer) if is_adapted else layer

    def _shard_shape(self, tensor: ParameterTensor, shape: tuple[int, int] | None, rows: int) -> tuple[int, int]:
        """Return [outputs, inputs] of a linear layer's shard on this rank. Arguments: those of :meth:`weights`."""
        stored = tensor.shape[::-1] if tensor.transposed else tensor.shape
        outputs, inputs = shape or (stored[0], stored[1])
        shards = min(self.tp, rows) if rows > 1 else self.tp
        if tensor.shard == "column":
            return ceil_div(outputs, shards), inputs
        return outputs, ceil_div(inputs, shards) if tensor.shard == "row" else inputs

    def faked(self, weights: Weights, *, tied: bool = False) -> Weights:
        """Return the layer with the fake quantizer of quantization-aware training, if the setting has one.

        ``tied``: the weight is the embedding's.
        """
        if self.setting.option("quantizer"):
            from memcheck.autograd.fake_quantised import fake

            fake(weights, self.setting, tied=tied)
        return weights

    def adapted(self, name: str, plain: Weights, adapter: Adapter) -> Weights:
        """Register LoRA's two matrices for a linear layer, and DoRA's magnitudes; return the layer with them.

        ``plain``: the layer without them. They are never stored quantised. Shapes: A [rank, inputs], B [outputs, rank],
        magnitudes [1, outputs].
        """
        shared = self.weights_of_later_layer, self.weights_of_earlier_layer
        if self.own_adapters:
            self.weights_of_later_layer = self.weights_of_earlier_layer = False
        outputs, inputs = plain.weight.shape

        def trained(suffix: str, shape: tuple[int, int]) -> Parameter:
            """Register one trained matrix of the adapter."""
            has_grad = self.setting.has_grad
            return self.register(
                Parameter(name + suffix, shape, adapter.module_dtype, requires_grad=True, has_grad=has_grad)
            )

        lora = trained(".lora_A", (adapter.rank, inputs)), trained(".lora_B", (outputs, adapter.rank))
        layer = Weights(plain.weight, plain.bias, lora, plain.quantized)
        layer.dropout, layer.peft_input_dtype = adapter.dropout, adapter.peft_input_dtype
        if adapter.dora:
            layer.magnitude = trained(".lora_magnitude", (1, outputs))
        self.weights_of_later_layer, self.weights_of_earlier_layer = shared
        return layer


def wider(dtype: str, other: str | None) -> str | None:
    """Return ``other`` if its elements have more bytes than those of ``dtype``, else None."""
    return other if other is not None and ITEM_BYTES[other] > ITEM_BYTES[dtype] else None


def is_frozen(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a ``freeze`` pattern names this module or one above it."""
    return any(p in name.split(".") or name == p or name.startswith(p + ".") for p in patterns)


def adapts(adapter: Adapter, name: str) -> bool:
    """Say whether peft would wrap the module ``name`` (all-linear: every linear layer of a block, not the head)."""
    if adapter.targets == "all-linear":
        return True
    leaf = name.rpartition(".")[2]
    targets = (adapter.targets,) if isinstance(adapter.targets, str) else adapter.targets
    return any(t in {leaf, name} or name.endswith("." + t) for t in targets)


def adapts_head(adapter: Adapter) -> bool:
    """Whether the targets name the head, which all-linear leaves out (peft ``_maybe_include_all_linear_layers``)."""
    return adapter.targets != "all-linear" and adapts(adapter, "lm_head")


def _drop(grad: Storage) -> None:
    """Consume a gradient that the framework has added to a persistent buffer: nothing on the tape keeps it."""


TOKENS = 64
"""Tokens of the short sequence on which the parameters of a forward are counted."""


def whole(setting: Setting) -> Setting:
    """Return the setting on one rank with everything trained, and as few tokens as show which weights a forward
    meets.
    """
    return setting._replace(
        batch=1,
        sequence=TOKENS,
        tensor_parallel=1,
        sequence_parallel=False,
        expert_parallel=1,
        expert_tensor_parallel=1,
        reentrant=False,
        trained=True,
        frozen_modules=(),
        has_grad=False,
        grad_dtype=None,
        needs_input_gradient=True,
        input_is_counted_elsewhere=False,
        holds_output_gradient=False,
        adapter=None,
        expert_imbalance=1.0,
        context_parallel=1,
        images=1,
    )


def touched(run: Callable[[Context], object], setting: Setting) -> int:
    """Return the elements of the weights that a forward pass registers; ``setting``: a :func:`whole` one."""
    ctx = Context(Tape(autocast=setting.autocast_dtype), setting)
    run(ctx)
    return sum(prod(p.shape) for p in ctx.parameters)


def touched_by(forward: Callable[[Context, Value], Value], setting: Setting) -> int:
    """Count the elements of the weights that the forward pass of a layer registers."""

    def run(ctx: Context) -> None:
        """Run the layer's forward on an input of the setting's size."""
        shape = (setting.sequence, setting.hidden)
        forward(
            ctx, Value(ctx.tape.new(shape, setting.compute_dtype, "block input"), shape, setting.compute_dtype, Leaf())
        )

    return touched(run, setting)


def elements(block: Block) -> int:
    """Count the elements of the weights that a layer reads, those that belong to another layer included."""
    return sum(t.count for t in block_tensors(block._replace(shared_with=block.shared_with._replace(later=False))))


def require_covered(read: int, elements: int, what: str, framework: str) -> None:
    """Check that a forward pass reads every weight of the rank exactly once.

    ``read``: elements of the weights that the forward pass reads. ``elements``: elements of the rank's weights.

    Raises:
        UnsupportedError: the numbers differ. The error points at ``training.framework``.
    """
    if read == elements:
        return
    raise UnsupportedError(
        f"memcheck has no complete model of {what} under {framework}: "
        f"its forward pass meets {read:,} of {elements:,} parameters",
        "choose another training.framework",
        "/training/framework",
    )
