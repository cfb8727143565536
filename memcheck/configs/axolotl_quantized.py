"""What an Axolotl config quantizes: a checkpoint's own form, the weights of quantization-aware training, experts."""

from __future__ import annotations

from memcheck.configs import axolotl_keys as keys
from memcheck.configs.axolotl_keys import KEYS
from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import on, text
from memcheck.configs.types import KeyRow


def quantization(draft: Draft) -> None:
    """Read ``model_quantization_config``. A 4-bit checkpoint that is dequantized while it loads is resident in 16 bits.

    Any other quantization is refused.
    """
    name = draft.config.take(keys.QUANTIZATION)
    if name is not None and not (name == keys.DEQUANTIZED and on(draft, keys.DEQUANTIZES)):
        message = f"`{keys.QUANTIZATION}`: the job is one with a base of another quantization"
        help = f"with `{keys.DEQUANTIZED}` and `dequantize: true` it is kept in 16 bits"
        draft.refuse(keys.QUANTIZATION, f"{message}, which has no memory model here", help, ("training.base",))
    draft.config.see(keys.DEQUANTIZES)


def quantizers(draft: Draft) -> None:
    """``qat``: inputs to int8 and weights to int4 have a memory model (``utils/quantization.py``, _make_qat_config)."""
    config, key = draft.config, "training.options.quantizer"
    if not config.section(keys.QAT):
        return
    weights, inputs = (text(draft, f"{keys.QAT}.{name}_dtype") for name in ("weight", "activation"))
    path = f"{keys.QAT}.weight_dtype" if weights else next(key for key in config.values if key.startswith(keys.QAT))
    config.see(*(key for key in config.values if key.startswith(f"{keys.QAT}.")))
    if (weights, inputs) == ("int4", "int8") and not on(draft, f"{keys.QAT}.quantize_embedding"):
        draft.set(key, "int8-int4", path)
        size = KeyRow(f"{keys.QAT}.group_size", "training.options.groupsize", default=keys.QAT_GROUP)
        draft.rows((size,))
    elif weights == "nvfp4":
        message = f"`{path}: nvfp4`: quantization-aware training to NVFP4 has no memory model here"
        draft.refuse(path, message, "torchao 0.18 stops at it: Unexpected base config: NVFP4WeightOnlyConfig", (key,))
    else:
        message = f"`{path}`: the job is one with quantization-aware training, which has no memory model here"
        draft.refuse(path, message, "int4 weights with int8 inputs have one", (key,))


def quantized_experts(draft: Draft, *, eight: bool) -> None:
    """``quantize_moe_experts``: stacked experts rest quantized, too (``monkeypatch/moe_quant.py``).

    ScatterMoE and SonicMoE read them by kernels of their own.
    """
    config, name, key = draft.config, "quantize_moe_experts", "training.options.quantize_experts"
    kernel = next((each for each in KEYS.names["expert_kernels"] if on(draft, each)), "")
    if not on(draft, name):
        config.see(name)
    elif eight:
        message = f"`{name}` with `load_in_8bit`: how long dequantized experts live has no memory model here"
        draft.refuse(name, message, "load in four bits", (key,))
    elif kernel:
        message = f"`{name}` with `{kernel}`, whose kernels dequantize experts in chunks, has no memory model here"
        draft.refuse(name, message, f"leave `{kernel}` out", (key,))
    else:
        draft.set(key, True, name)
