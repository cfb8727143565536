"""What CUDA's kernels keep, on fake CPU tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def saved(make) -> list[tuple[tuple[int, ...], object]]:
    """Shapes and dtypes of what autograd keeps for backward."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memcheck.verify.trace.kernels import CudaKernels

    kept: list[tuple[tuple[int, ...], object]] = []

    def pack(tensor):
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with FakeTensorMode(), CudaKernels(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        make()
    return kept


def attention(dtype, mask: bool = False, heads: int = 4, value: int = 16) -> list[tuple[int, ...]]:
    """Shapes kept by attention over 8 tokens."""

    def make() -> None:
        q = torch.randn(1, 4, 8, 16, dtype=dtype, requires_grad=True)
        k = torch.randn(1, heads, 8, 16, dtype=dtype, requires_grad=True)
        v = torch.randn(1, heads, 8, value, dtype=dtype, requires_grad=True)
        bias = torch.ones(8, 8, dtype=torch.bool) if mask else None
        torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=not mask, enable_gqa=heads != 4
        )

    return [shape for shape, _ in saved(make)]


def test_flash_keeps_one_figure_per_row_and_head() -> None:
    """Half precision without a mask: query, key, value, output and the log-sum-exp, no matrix of scores."""
    shapes = attention(torch.bfloat16)
    assert (1, 4, 8) in shapes
    assert (1, 4, 8, 8) not in shapes


def test_a_mask_needs_the_memory_efficient_kernel() -> None:
    """It keeps the mask in the queries' dtype, expanded over the heads."""
    assert (1, 4, 8, 8) in attention(torch.bfloat16, mask=True)


def test_a_value_head_of_its_own_needs_it_too() -> None:
    """Latent attention has other sizes for values; scores are still not kept."""
    assert (1, 4, 8, 8) not in attention(torch.bfloat16, value=4)


def test_grouped_heads_in_full_precision_fall_to_the_plain_code() -> None:
    """The math kernel keeps the scores."""
    assert (1, 4, 8, 8) in attention(torch.float32, heads=2)


def test_dropout_keeps_a_byte_per_element() -> None:
    """A boolean mask, and only in training."""

    def make(training: bool) -> None:
        x = torch.randn(64, requires_grad=True)
        torch.nn.functional.dropout(x, 0.1, training)

    assert [dtype for _, dtype in saved(lambda: make(training=True))] == [torch.bool]
    assert saved(lambda: make(training=False)) == []


def test_rms_norm_is_one_kernel() -> None:
    """Input, weight and one fp32 figure per row."""

    def make() -> None:
        x = torch.randn(6, 32, dtype=torch.bfloat16, requires_grad=True)
        torch.nn.functional.rms_norm(x, (32,), torch.ones(32, dtype=torch.bfloat16, requires_grad=True))

    kept = saved(make)
    assert kept == [((6, 32), torch.bfloat16), ((32,), torch.bfloat16), ((6, 1), torch.float32)]


@pytest.mark.parametrize(("inside", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_autocast_computes_in_fp32_what_cuda_does(inside: bool, dtype: str) -> None:
    """``pow`` is on CUDA's list and not on the CPU's."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memcheck.verify.trace.kernels import CudaKernels

    with FakeTensorMode(), CudaKernels():
        x = torch.ones(4, dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            assert x.pow(2).dtype is getattr(torch, dtype)
            assert torch.softmax(x, -1, dtype=torch.bfloat16).dtype is torch.bfloat16


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_recompute_uses_the_same_kernels(reentrant: bool) -> None:
    """Autograd switches function modes off; recomputing in backward switches them on again."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.checkpoint import checkpoint

    from memcheck.verify.trace.kernels import CudaKernels, recomputes

    seen: list[str] = []

    class Log(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    def run(x):
        return torch.nn.functional.dropout(x, 0.5).sin()

    with recomputes(), FakeTensorMode(), CudaKernels(), Log():
        x = torch.randn(8, requires_grad=True)
        checkpoint(run, x, use_reentrant=reentrant).sum().backward()
    assert seen.count("aten::native_dropout") == 2


def test_gradients_meet_in_place() -> None:
    """As without a dispatch mode: autograd adds to a gradient that it alone holds, and to no other."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memcheck.verify.trace.tracer import Tracer

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x.clone()

        @staticmethod
        def backward(_ctx, gradient):
            one, two = gradient * 1, gradient * 1
            total = one + two  # Python still holds both
            return total + one

    def highest(function, *, in_place: bool) -> int:
        with FakeTensorMode():
            x = torch.zeros(2**20, requires_grad=True)
            tracer = Tracer(lambda: False, lambda *_: None, in_place=in_place)
            tracer.hold(x)
            with tracer:
                y = function(x)
                tracer.account.begin_step()
                tracer.phase = "backward"
                y.sum().backward()
            return round((tracer.account.tops["backward"].bytes - x.nbytes) / x.nbytes)

    def held(x: torch.Tensor) -> torch.Tensor:
        return Doubles.apply(x)

    def met(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        return torch.stack([y.neg(), y.neg()])

    assert (
        highest(held, in_place=True) == highest(held, in_place=False) == 5
    )  # y, and in backward: one, two, total, total + one
    assert highest(met, in_place=True) == 4  # two in y, one gradient from either half; their sum is no fifth
    assert highest(met, in_place=False) == 5
