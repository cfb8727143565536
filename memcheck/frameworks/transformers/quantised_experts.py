"""Stacked experts whose matrices are stored in four or eight bits, and are dequantised where a forward reads them.

Sources: bitsandbytes 0.50 nn/parametrize.py (``Bnb4bitParametrization``, without a graph; the cache that its hooks keep
open until the module's forward returns), functional.py (``dequantize_4bit``) and backends/default/ops.py
(``int8_vectorwise_dequant``); Axolotl 067b021c monkeypatch/moe_quant.py (``patch_moe_quantization_on_load``,
``Bnb8bitParametrization``); peft 0.19 tuners/lora/layer.py (``ParamWrapper._activate_lora``):
later ones stop at a quantised parameter in the second step.

Quantization-aware training of transformers' models, as Axolotl prepares it: where it has a memory model.

Source: Axolotl 067b021c ``utils/quantization.py`` (prepare_model_for_qat): torchao's ``quantize_`` puts a
FakeQuantizedLinear in place of every ``nn.Linear``, the head among them.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import add, cast, operator, scale
from memcheck.autograd.tensor import Tape, Value, ceil_div
from memcheck.autograd.weight_formats import BITSANDBYTES, FOUR_BIT_BLOCK, INT8
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.adapters import factors_of
from memcheck.job.types import TrainingJob
from memcheck.models.module_types import DenseDispatchMoe, StreamMoe
from memcheck.models.types import Architecture, Attention, Block, Mlp, Moe, ParameterTensor

OPTION = "quantize_experts"
PLACE = f"/training/options/{OPTION}"


def dequantised(ctx: Context, shape: tuple[int, int, int]) -> Value:
    """Dequantise all experts' matrices of one parameter, ``shape``: 4-bit ones to 16 bits, 8-bit ones to fp32.

    The constants of 4-bit weights are briefly in fp32. 8-bit weights are multiplied by their rows' scales, and by 1/127
    in a second tensor.
    """
    tape, adapter = ctx.tape, ctx.setting.adapter
    stored = adapter.base_format if adapter is not None else None
    if stored == INT8:
        scaled = tape.new(shape, "fp32", "8-bit experts times their scales")
        out = tape.value(shape, "fp32", "dequantised experts")
        del scaled
        return out
    experts, outputs, inputs = shape
    constants = ceil_div(experts * outputs * inputs, FOUR_BIT_BLOCK) if stored is not None and stored.nested else 0
    absmax = [tape.new((constants,), "fp32", "4-bit constants") for _ in range(2)] if constants else []
    out = tape.value(shape, ctx.setting.autocast_dtype or ctx.setting.compute_dtype, "dequantised experts")
    del absmax
    return out


class AdaptedExperts:
    """The adapters of one mixture's quantised experts, as they live while peft's forward around the experts runs.

    peft wraps one parameter after the other, so that the last one is the outermost. A wrapper multiplies its two LoRA
    matrices to a product of the parameter's size, and asks for the weight to learn its dtype. The outermost wrapper
    then opens bitsandbytes' cache, which keeps each weight that an inner wrapper asks for. The experts read the cached
    weights, without their adapters, whose matrices get no gradient.
    """

    __slots__ = ("_cached_weights", "_products")

    def __init__(self, ctx: Context, shapes: dict[ParameterTensor, tuple[int, int, int]], moe: Moe) -> None:
        """``shapes``: [experts, outputs, inputs] of each parameter of the local experts, in the order of definition."""
        setting, tape = ctx.setting, ctx.tape
        assert setting.adapter is not None  # noqa: S101 - the caller's question
        self._products: dict[str, Value] = {}
        self._cached_weights: dict[str, Value] = {}
        for tensor, shape in reversed(shapes.items()):
            factors = factors_of(ctx, moe, tensor, setting.autocast_dtype or setting.adapter.module_dtype)
            if factors is None:
                continue
            product = _scaled_product(tape, shape, factors)
            weight = dequantised(ctx, shape)
            product = cast(tape, product, weight.dtype)
            is_inner = bool(self._products)
            if is_inner:
                self._cached_weights[tensor.name] = weight
            else:
                del weight  # the weight whose dtype is asked for: no cache is open yet
                weight = dequantised(ctx, shape)
            _checked = add(tape, weight, product, "weight with adapter")  # register_parametrization tries it once
            del _checked, weight
            self._products[tensor.name] = product

    def weight(self, ctx: Context, tensor: ParameterTensor, shape: tuple[int, int, int]) -> Value:
        """Compute the matrices of one parameter, ``shape``, as the experts read them."""
        ctx.tape.parameter(ctx.parameter(tensor.name, shape))
        if tensor.name in self._cached_weights:
            return self._cached_weights[tensor.name]
        weight, product = dequantised(ctx, shape), self._products.get(tensor.name)
        return weight if product is None else add(ctx.tape, weight, product, "weight with adapter")


def _scaled_product(tape: Tape, shape: tuple[int, int, int], factors: tuple[Value, Value]) -> Value:
    """Compute ``einsum("o r e, e r i -> e o i", B, A) * scaling``, ``shape``; the product keeps both factors."""
    product = operator(
        tape, tape.value(shape, factors[0].dtype, "adapter product"), factors, "einsum backward", saves=factors
    )
    return scale(tape, product, "scaled adapter product")


def refuse_experts(job: TrainingJob) -> None:
    """Check that the option that quantises the job's experts has a memory model.

    Raises:
        UnsupportedError: the option has no memory model here.
    """
    architecture, layout = job.architecture, job.layout
    blocks = architecture.blocks if isinstance(architecture, Architecture) else ()
    base = job.base_format.name if job.base_format is not None else ""
    mixtures = [block for block, _ in blocks if isinstance(block.mlp, Moe)]
    cases = (
        (job.method == "full" or not base, "without a quantised base", "choose method: qlora"),
        (job.base_format not in BITSANDBYTES, f"in {base}", "load the base in four bits"),
        (layout.expert > 1 or layout.tensor > 1, "on several ranks", "leave the degree out"),
        (any(isinstance(b.mlp, DenseDispatchMoe) for b in mixtures), "that all tokens pass", "leave it out"),
        (
            job.checkpointing.mode != "none" and any(_ends_inside(b) for b in mixtures),
            "that end their layer: recompute stops inside them, and bitsandbytes up to 0.49.2 keeps every layer's,",
            "leave recompute or the option out",
        ),
    )
    for is_refused, which, help in cases:
        if is_refused:
            raise UnsupportedError(f"quantised experts {which} have no memory model", help, PLACE)


def _ends_inside(block: Block) -> bool:
    """Say whether nothing after the experts keeps a tensor, so that a checkpoint's recompute ends within their
    forward.
    """
    m = block.mlp
    if not isinstance(m, Moe) or block.mlp_output_norm is not None or isinstance(m, StreamMoe):
        return False
    return not m.shared.width or (m.shared.runs_first and not m.shared.gate)


QUANTIZER_PLACE = "/training/options/quantizer"


def refuse_quantizer(job: TrainingJob) -> None:
    """Check that every linear layer that a step runs has a memory model with its quantizers.

    Raises:
        UnsupportedError: a layer has no such model.
    """
    architecture, layout = job.architecture, job.layout
    plain = False
    if isinstance(architecture, Architecture) and architecture.encoder is None:
        layers = [block for block, _ in architecture.blocks]
        plain = all(isinstance(layer.mixer, Attention) and isinstance(layer.mlp, Mlp) for layer in layers)
    cases = (
        (job.method != "full", "with adapters", "choose method: full"),
        (job.compile, "of a compiled model", "leave `compile` out"),
        (layout.tensor * layout.pipeline * layout.context > 1, "of divided layers or rows", "leave the degree out"),
        (layout.zero_stage in (1, 2), "under ZeRO-1 or 2", "choose parallelism.zero_stage: 0 or 3"),
        (
            job.images is not None and job.images.pictures_per_sample > 0,
            "of a model that sees",
            "write `images: {per_sample: 0}`",
        ),
        (not plain, "of layers that are not attention and a feed-forward network", "leave it out"),
        (job.objective.name != "sft", f"under objective {job.objective.name}", "leave it out"),
    )
    for problem, what, help in cases:
        if problem:
            raise UnsupportedError(f"quantization-aware training {what} has no memory model", help, QUANTIZER_PLACE)
