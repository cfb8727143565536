"""flash-attn's functions on fake tensors, for nanotron: what their Python and C++ allocate, without the kernels.

Read at flash-attn 0251105a (August 2026): ``flash_attn_interface.py`` (FlashAttnVarlenFunc,
FlashAttnVarlenKVPackedFunc), ``csrc/flash_attn/flash_api.cpp`` (mha_varlen_fwd, mha_varlen_bwd), ``layers/rotary.py``,
``ops/triton/layer_norm.py`` and ``ops/triton/rotary.py``.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

PROGRAMS = 132 * 8
"""Rows of a norm's partial weight gradients: eight for each multiprocessor of an H100."""


def install() -> None:
    """Make these the modules that nanotron imports."""
    _module("flash_attn", __version__="2.8.3", bert_padding=_module("flash_attn.bert_padding"))
    _module("flash_attn.flash_attn_interface", flash_attn_varlen_func=varlen, flash_attn_with_kvcache=None)
    _module("flash_attn.modules")
    _module("flash_attn.modules.mha", flash_attn_varlen_kvpacked_func=varlen_packed)
    _module("flash_attn.layers")
    _module("flash_attn.layers.rotary", RotaryEmbedding=RotaryEmbedding, apply_rotary_emb=_Rotated.apply)
    _module("flash_attn.ops")
    _module("flash_attn.ops.triton")
    _module("flash_attn.ops.triton.layer_norm", layer_norm_fn=layer_norm)


class _Lacking(ModuleType):
    """A module whose other names, of other ways to attend, can be imported and not used."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _module(name: str, **contents: Any) -> ModuleType:
    found = _Lacking(name)
    found.__dict__.update(contents, __path__=[], __spec__=ModuleSpec(name, None, is_package=True))
    sys.modules[name] = found
    return found


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        ctx.save_for_backward(rows, weight, torch.empty(rows.shape[0], dtype=torch.float32))
        ctx.shape = x.shape
        return out.reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows, weight, _ = ctx.saved_tensors
        gradient = gradient.reshape(-1, gradient.shape[-1])
        dx = torch.empty_like(rows)
        parts = torch.empty((PROGRAMS, rows.shape[-1]), dtype=torch.float32)
        return dx.reshape(ctx.shape), parts.sum(0).to(weight.dtype)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: None, **_: Any) -> torch.Tensor:
    """``layer_norm_fn`` without a residual, a bias or dropout."""
    out: torch.Tensor = _Norm.apply(x, weight)
    return out


def _forward(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _backward(q: torch.Tensor, k: torch.Tensor, sequences: int) -> None:
    """What ``mha_varlen_bwd`` takes for itself."""
    rows, heads, width = q.shape[0] + 128 * sequences, q.shape[1], q.shape[2]
    multiple = 32 if width <= 128 else 64  # flash_api.cpp has the same numbers
    width = -(-width // multiple) * multiple
    taken = [torch.empty((heads, rows), dtype=torch.float32), torch.empty((rows, heads, width), dtype=torch.float32)]
    if k.shape[1] != heads:
        taken += [torch.empty((k.shape[0], heads, q.shape[2]), dtype=q.dtype) for _ in range(2)]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        out, lse = _forward(q)
        ctx.save_for_backward(q, k, v, out, lse, starts)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        q, k, v, _, _, starts = ctx.saved_tensors
        del gradient
        found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        _backward(q, k, starts.shape[0] - 1)
        return *found, None


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        k, v = kv[:, 0].detach(), kv[:, 1].detach()
        out, lse = _forward(q)
        ctx.save_for_backward(q, k, v, out, lse, starts)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        q, k, _, _, _, starts = ctx.saved_tensors
        del gradient
        dq, dkv = torch.empty_like(q), torch.empty((k.shape[0], 2, *k.shape[1:]), dtype=k.dtype)
        _backward(q, k, starts.shape[0] - 1)
        return dq, dkv, None


def varlen(**arguments: Any) -> torch.Tensor:
    """``flash_attn_varlen_func``."""
    out: torch.Tensor = _Attention.apply(*(arguments[name] for name in ("q", "k", "v", "cu_seqlens_q")))
    return out


def varlen_packed(q: torch.Tensor, kv: torch.Tensor, starts: torch.Tensor, *_: Any, **options: Any) -> Any:
    """``flash_attn_varlen_kvpacked_func``."""
    out = _PackedAttention.apply(q, kv, starts)
    return (out, None, None) if options["return_attn_probs"] else out


class _Rotated(torch.autograd.Function):
    """Rotation in place, of queries or of keys: nothing is made."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(x) if x.requires_grad and not x._is_view() else None  # noqa: SLF001
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None, None


class RotaryEmbedding(torch.nn.Module):
    """flash-attn's module, which keeps a table of cosines and one of sines in the dtype that it rotates."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: None = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.base, self.dim, self.interleaved, self.scale = base, dim, interleaved, scale_base
        self.pos_idx_in_fp32 = pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self._seq_len_cached, self._cos_cached, self._sin_cached = 0, None, None

    def _compute_inv_freq(self, device: Any = None) -> torch.Tensor:
        del device
        return 1.0 / (self.base ** (torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim))

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
        del device
        if seqlen > self._seq_len_cached or self._cos_cached is None:
            self._seq_len_cached = seqlen
            freqs = torch.outer(torch.arange(seqlen, dtype=torch.float32), self.inv_freq.float())
            self._cos_cached, self._sin_cached = torch.cos(freqs).to(dtype), torch.sin(freqs).to(dtype)

    def forward(self, q: torch.Tensor, kv: torch.Tensor, max_seqlen: int | None = None, **_: Any) -> Any:
        """Both, rotated where they lie."""
        self._update_cos_sin_cache(q.shape[1] if max_seqlen is None else max_seqlen, None, q.dtype)
        return (_Rotated.apply(t, self._cos_cached, self._sin_cached) for t in (q, kv))


class OnTheCpu(torch.overrides.TorchFunctionMode):
    """Tensors that are asked for on the GPU are made where the fake ones are. ``rows``: sequences of a micro-batch."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function with the CPU in place of the GPU."""
        kwargs = dict(kwargs or {})
        if func is torch.where and len(args) == 1:  # where sequences start: each micro-batch has rows of one
            return (torch.arange(self.rows),)
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        args = tuple("cpu" if isinstance(a, str) and a.startswith("cuda") else a for a in args)
        return func(*args, **kwargs)
