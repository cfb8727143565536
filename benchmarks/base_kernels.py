"""Layers whose frozen weights are quantised, on fake tensors: bitsandbytes' own, with what its CUDA kernels allocate.

bitsandbytes 0.50 registers kernels as operators, and fake tensors know what an operator returns, not what it takes for
itself. Where Python code of ``backends/cuda/ops.py`` allocates between the operators, it is repeated here line by line.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import bitsandbytes as bnb
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from bitsandbytes.autograd._functions import MatMul8bitLt, MatmulLtState
from bitsandbytes.nn.parametrize import Bnb4bitParametrization, _register_parametrization_hooks
from peft.tuners import tuners_utils
from peft.tuners.lora import dora
from torch import nn
from torch.nn.utils import parametrize

from memcheck.autograd.weight_formats import Int8, WeightFormat

STACKED = 3
"""Dimensions of a parameter that holds all experts."""
BLOCK, NESTED = 64, 256
"""Elements that share an absmax, and absmax values that share theirs once they are quantised, too."""
THRESHOLD = 6.0
"""transformers' ``llm_int8_threshold``."""


def as_on_cuda() -> None:
    """Put what CUDA's kernels allocate in place of what the operators say."""
    torch.ops.bitsandbytes.gemm_4bit = SimpleNamespace(default=_gemm_4bit)
    torch.ops.bitsandbytes.int8_mixed_scaled_mm = _int8_mixed_scaled_mm
    bnb.functional.int8_vectorwise_quant = _int8_vectorwise_quant
    dora.dequantize_module_weight = _dequantized
    bnb.matmul = lambda x, w, bias=None, state=None: MatMul8bitLt.apply(x, w, None, bias, state)


def _gemm_4bit(
    a: torch.Tensor,
    _b: torch.Tensor,
    shape: Any,
    absmax: torch.Tensor,
    _blocksize: int,
    _quant_type: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """``_dequant_linear_fallback``, which runs beyond 1536 tokens."""
    del absmax_code
    if absmax_8bit is not None:
        absmax_dq = torch.empty_like(absmax_8bit, dtype=torch.float32)
        constants = absmax_dq + absmax_offset  # noqa: F841  # a variable to the end, as upstream
    whole = torch.empty(shape, dtype=a.dtype)
    out: torch.Tensor = F.linear(a, whole, bias)
    return out


def _int8_vectorwise_quant(a: torch.Tensor, threshold: float = 0.0) -> Any:
    """``int8_vectorwise_quant`` of CUDA, where no value is an outlier."""
    row_stats = torch.empty(a.numel() // a.shape[-1], dtype=torch.float32)
    out_row = torch.empty(a.shape, dtype=torch.int8)
    columns = None
    if threshold > 0.0:
        outliers = a.abs() >= threshold
        outliers.any()
        columns = torch.empty(0, dtype=torch.int64)
    return out_row, row_stats, columns


def _int8_mixed_scaled_mm(
    a: torch.Tensor,
    ca: torch.Tensor,
    cb: torch.Tensor,
    sca: torch.Tensor,
    scb: torch.Tensor,
    _columns: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> Any:
    """The default kernel, which calls CUDA's product and its dequantisation."""
    del sca, scb
    sub = torch.empty(0, dtype=a.dtype)
    out32 = torch.empty((*ca.shape[:-1], cb.shape[0]), dtype=torch.int32)
    out = torch.empty_like(out32, dtype=torch.float16)
    if bias is not None and bias.dtype != torch.float16:
        out.add_(bias)
    return out.to(a.dtype), sub


def _dequantized(module: Any) -> torch.Tensor:
    """peft's ``dequantize_module_weight``, which tells both kinds apart by the names of their weights' classes."""
    if isinstance(module, FourBits):
        out: torch.Tensor = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        return out
    wide: torch.Tensor = bnb.functional.int8_vectorwise_dequant(module.weight.data, module.state.SCB)
    return wide


def _state(weight: torch.Tensor, kind: str, dtype: torch.dtype, *, double: bool) -> Any:
    """The constants of a weight in four bits, and the dtype that comes out of it."""
    absmax = torch.empty(-(-weight.numel() // BLOCK), dtype=torch.float32)
    nested, offset = None, None
    if double:
        nested = bnb.functional.QuantState(
            torch.empty(-(-absmax.numel() // NESTED), dtype=torch.float32),
            code=torch.empty(256, dtype=torch.float32),
            blocksize=NESTED,
            dtype=torch.float32,
        )
        offset, absmax = torch.empty((), dtype=torch.float32), torch.empty(absmax.shape, dtype=torch.uint8)
    return bnb.functional.QuantState(
        absmax,
        shape=weight.shape,
        code=torch.empty(16, dtype=torch.float32),
        blocksize=BLOCK,
        quant_type=kind,
        dtype=dtype,
        offset=offset,
        state2=nested,
    )


def _constants(state: Any) -> list[torch.Tensor]:
    found = [state.absmax, state.code]
    return found + ([state.offset, state.state2.absmax] if state.nested else [])


class FourBits(bnb.nn.Linear4bit):
    """``Linear4bit`` with a weight that is a fake tensor already."""

    def __init__(self, old: nn.Linear, kind: str, compute: torch.dtype, *, double: bool) -> None:
        nn.Linear.__init__(self, old.in_features, old.out_features, bias=False, device="meta")
        self.bias = old.bias
        count = old.weight.numel()
        self.weight = nn.Parameter(torch.empty((count + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
        self.weight.quant_state = _state(old.weight, kind, compute, double=double)
        self.weight.compress_statistics, self.weight.quant_type = double, kind
        self.compute_dtype, self.compute_type_is_set = compute, True
        self.support_avx512bf16_for_cpu = False

    def beside(self) -> list[torch.Tensor]:
        """What rests beside the parameters."""
        return _constants(self.weight.quant_state)


class EightBits(bnb.nn.Linear8bitLt):
    """``Linear8bitLt`` with a weight that is a fake tensor already."""

    def __init__(self, old: nn.Linear) -> None:
        nn.Linear.__init__(self, old.in_features, old.out_features, bias=False, device="meta")
        self.bias, self.index = old.bias, None
        self.weight = nn.Parameter(torch.empty(old.weight.shape, dtype=torch.int8), requires_grad=False)
        self.state = MatmulLtState()
        self.state.threshold, self.state.has_fp16_weights, self.state.use_pool = THRESHOLD, False, True
        self.state.CB, self.state.SCB = self.weight.data, torch.empty(old.out_features, dtype=torch.float32)
        self.weight.CB = None

    def beside(self) -> list[torch.Tensor]:
        """What rests beside the parameters."""
        return [self.state.SCB]


def quantised(model: nn.Module, base: WeightFormat, compute: torch.dtype) -> list[torch.Tensor]:
    """Replace every linear layer but the head; what rests beside the parameters."""
    found: list[torch.Tensor] = []
    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or name.endswith("lm_head"):
            continue
        new: Any
        if isinstance(base, Int8):
            new = EightBits(module)
        else:
            new = FourBits(module, base.name.partition("-")[0], compute, double=base.nested)
        model.set_submodule(name, new)
        found += new.beside()
    model.is_loaded_in_8bit, model.is_loaded_in_4bit = isinstance(base, Int8), not isinstance(base, Int8)
    model.is_quantized = True
    return found


class RowwiseInt8(nn.Module):
    """Dequantises int8 weights on access, with one fp32 scale a row (Axolotl ``Bnb8bitParametrization``)."""

    def __init__(self, row_scales: torch.Tensor) -> None:
        """Keep the scales, [rows]."""
        super().__init__()
        self.register_buffer("row_scales", row_scales)

    @torch.no_grad()
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight, [experts, outputs, inputs], in fp32."""
        rows = weight.reshape(-1, weight.shape[-1])
        # int8_vectorwise_dequant in its two products (backends/default/ops.py); the operator's fake version makes one
        return (rows * self.row_scales.view(-1, 1) * (1 / 127)).reshape(weight.shape)


def quantised_experts(model: nn.Module, base: WeightFormat, compute: torch.dtype) -> list[torch.Tensor]:
    """Every stacked parameter of experts in four or eight bits, dequantised where it is read.

    Sources: bitsandbytes ``replace_parameter_4bit``; for eight bits Axolotl's ``replace_parameter_8bit``.
    """
    found: list[torch.Tensor] = []
    for path, module in list(model.named_modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() < STACKED or "expert" not in f"{path}.{name}":
                continue
            if isinstance(base, Int8):
                codes = nn.Parameter(torch.empty(parameter.shape, dtype=torch.int8), requires_grad=False)
                setattr(module, name, codes)
                rows = RowwiseInt8(torch.empty(parameter.numel() // parameter.shape[-1], dtype=torch.float32))
                parametrize.register_parametrization(module, name, rows, unsafe=True)
                _register_parametrization_hooks(module, name)
                found.append(rows.row_scales)
                continue
            state = _state(parameter, base.name.partition("-")[0], compute, double=base.nested)
            codes = nn.Parameter(torch.empty((parameter.numel() + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
            setattr(module, name, codes)
            parametrize.register_parametrization(module, name, Bnb4bitParametrization(state), unsafe=True)
            _register_parametrization_hooks(module, name)
            found += _constants(state)
    return found


def with_whole_paths(model: nn.Module, lora: Any) -> Any:
    """The adapters with whole paths of quantised parameters, which peft wraps as they are defined.

    Source: Axolotl ``patch_peft_target_parameters_matching``. peft 0.21 stops at a quantised parameter in the second
    step (``original.requires_grad_``): the cases were traced with 0.19.1.
    """
    held = [
        f"{path}.{name}" for path, module in model.named_modules() for name in getattr(module, "parametrizations", ())
    ]
    named = [path for path in held if any(path.endswith("." + each) for each in lora.target_parameters)]
    if not named:
        return lora
    tuners_utils.sorted = lambda names: sorted(names, key=named.index)
    return lora._replace(target_parameters=tuple(named))


def prepared(model: nn.Module) -> None:
    """``prepare_model_for_kbit_training``: every 16-bit parameter in fp32."""
    wide: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dtype in (torch.float16, torch.bfloat16):
                known = wide.get(id(parameter))
                if known is None:
                    known = wide[id(parameter)] = nn.Parameter(parameter.detach().float(), requires_grad=False)
                module.register_parameter(name, known)
