"""Follows every storage that an operator makes, from birth to death, and how high their sum goes in each phase.

Parts of torch have allocations with a meaning of their own: FSDP2's collectives, DTensor's shape arithmetic.

Gradients that meet in autograd's buffers are added in place, as without a dispatch mode:
torch/csrc/autograd/input_buffer.cpp reuses a gradient that has no other reference (can_accumulate_inplace), except for
tensor subclasses. While a dispatch mode is active it takes every tensor for one. A trace then shows a third tensor at
each such moment that no real run has. The recorded traces have it, and a trace has to equal them. It is put right where
FSDP2 makes the gradients of the head fp32: none of the recorded traces has this case, and the third tensor would be its
peak.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, final

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode

from memcheck.record import Record
from memcheck.verify.build.tensors import is_wrapper, plain_tensors, short
from memcheck.verify.compare import RefusedStepError
from memcheck.verify.replay.runs import AllocationSequence

ALIGNMENT = 512
"""The CUDA caching allocator rounds every block up to this."""


def rounded(size: int) -> int:
    """Bytes of the block that holds ``size`` bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class LiveStorage:
    """One live storage."""

    __slots__ = ("block", "dtype", "module", "operation", "phase", "recomputed", "reference", "region", "shape", "size")

    def __init__(self, tensor: torch.Tensor, operation: str, phase: str, module: str, region: str) -> None:
        self.size = self.block = 0
        self.operation = operation
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.phase = phase
        self.module = module
        self.region = region
        self.recomputed = phase == "backward" and bool(module)
        """Born in a module's forward while backward runs."""
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


class Top(Record):
    """The highest point of a phase."""

    bytes: int
    operator: int
    """Counted from the start of the step."""
    words: str


class Account:
    """Running total of live blocks, by storage identity."""

    def __init__(self) -> None:
        self.live: dict[int, LiveStorage] = {}
        self.total = 0
        self.operators = 0
        self.tops: dict[str, Top] = {}
        self.sequence: AllocationSequence | None = None
        """Every block that comes and goes, for a replay of the allocator."""

    def begin_step(self) -> None:
        """Forget the highest points, keep what lives."""
        self.operators = 0
        self.tops = {}
        if self.sequence is not None:
            self.sequence.begin_step()

    def enter(self, phase: str) -> None:
        """What comes now is of this part of the step."""
        if self.sequence is not None:
            self.sequence.enter(phase)

    def add(self, tensor: torch.Tensor, operation: str, phase: str, module: str, region: str) -> None:
        """A tensor appeared: count its storage unless it is known."""
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # the only identity that outlives Python's wrappers
        known = self.live.get(key)
        if known is not None and known.reference is not None and known.reference() is not None:
            if known.size != storage.size():
                self._resize(known, storage.size())
            return
        entry = LiveStorage(tensor, operation, phase, module, region)

        def died(_: object) -> None:
            self._remove(key, entry)

        entry.reference = weakref.ref(storage, died)
        self.live[key] = entry
        self._resize(entry, storage.size())

    def tag(self, tensor: torch.Tensor, region: str) -> None:
        """Say what a counted storage turned out to be."""
        self.live[tensor.untyped_storage()._cdata].region = region  # noqa: SLF001

    def resize(self, storage: torch.UntypedStorage) -> bool:
        """A storage changed its size in place; whether it is one of ours."""
        entry = self.live.get(storage._cdata)  # noqa: SLF001
        if entry is None:
            return False
        self._resize(entry, storage.size())
        return True

    def recorded(self, tensor: torch.Tensor, stream: object) -> None:
        """Another stream works on a tensor."""
        entry = self.live.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        if self.sequence is not None and entry is not None:
            self.sequence.recorded(id(entry), stream)

    def note(self, phase: str, words: str) -> bool:
        """The present as a candidate for the phase's highest point; whether it is one."""
        top = self.tops.get(phase)
        if top is not None and self.total <= top.bytes:
            return False
        self.tops[phase] = Top(self.total, self.operators, words)
        return True

    def _resize(self, entry: LiveStorage, size: int) -> None:
        block = rounded(size)
        self.total += block - entry.block
        if self.sequence is not None and block != entry.block:
            self.sequence.freed(id(entry))
            self.sequence.allocated(id(entry), block)
        entry.size, entry.block = size, block

    def _remove(self, key: int, entry: LiveStorage) -> None:
        self.total -= entry.block
        entry.block = 0
        if self.sequence is not None:
            self.sequence.freed(id(entry))
        if self.live.get(key) is entry:
            del self.live[key]


Uses = tuple[int, int]
"""References to a tensor, and to its storage, as an intercepted operator sees them."""


def uses(tensor: torch.Tensor) -> Uses:
    """How many refer to it now."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # noqa: SLF001


class _Probe(TorchDispatchMode):
    """Sees the engine add two gradients, the first of which it alone holds."""

    seen: Uses | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Remember the references of a sum in backward."""
        if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
            self.seen = uses(args[0])
        return func(*args, **(kwargs or {}))


def alone() -> Uses | None:
    """The references of a gradient that only the engine's buffer holds; None where they cannot be told."""
    if not hasattr(torch.Tensor, "_use_count"):
        return None
    x = torch.ones(4, requires_grad=True)
    with torch.enable_grad(), _Probe() as probe:
        y = x * 2
        (torch.sin(y) + torch.cos(y)).sum().backward(inputs=[x])
    seen: Uses | None = probe.seen
    return seen


@contextmanager
def patched(owner: Any, name: str, value: object) -> Iterator[None]:
    """``owner.name`` is ``value`` inside; afterwards what it was, down to where it was defined."""
    missing = object()
    own = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"

FSDP_FUNCTIONS = {
    "foreach_all_gather": ALL_GATHER,
    "foreach_all_gather_copy_out": ALL_GATHER,
    "foreach_reduce": REDUCE_SCATTER,
}
PROPAGATION = ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached", "propagate")


class Counter(Protocol):
    """What a region is told to."""

    region: str
    paused: bool


@contextmanager
def collectives(counter: Counter) -> Iterator[None]:
    """Tag what FSDP2 allocates to gather parameters and to reduce gradients."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

    with ExitStack() as stack:
        for name, region in FSDP_FUNCTIONS.items():
            function = getattr(group, name, None)
            if function is not None:
                stack.enter_context(patched(group, name, _tagged(function, counter, region)))
        yield


def _tagged(function: Callable[..., Any], counter: Counter, region: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        outside, counter.region = counter.region, region
        try:
            return function(*args, **kwargs)
        finally:
            counter.region = outside

    return run


@contextmanager
def shape_propagation(counter: Counter) -> Iterator[None]:
    """Do not count the tensors on which DTensor works out global shapes: outside of a trace they have no memory."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    with ExitStack() as stack:
        for name in PROPAGATION:
            function = vars(ShardingPropagator).get(name)
            if callable(function):
                stack.enter_context(patched(ShardingPropagator, name, _uncounted(function, counter)))
        yield


def _uncounted(function: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        outside, counter.paused = counter.paused, True
        try:
            return function(*args, **kwargs)
        finally:
            counter.paused = outside

    return run


PRODUCTS = frozenset(getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm"))
"""Operators that multiply matrices of one dtype."""
ATTENTION_BACKWARD = frozenset((torch.ops.aten._scaled_dot_product_flash_attention_backward.default,))  # noqa: SLF001
"""Operators that CUDA leaves undefined where no gradient arrives (native/transformers/cuda/attention_backward.cu)."""
Look = Callable[[str], None]


@final
class Tracer(TorchDispatchMode):
    """A watch that counts. ``look`` is called at the operators of ``targets``, once the total is as stated there."""

    def __init__(
        self, interrupted: Callable[[], bool], progress: Callable[[str, str], None], *, in_place: bool = False
    ) -> None:
        super().__init__()
        self.account = Account()
        self.phase = "init"
        self.region = ""
        self.paused = False
        self.modules: list[str] = []
        self.names: dict[nn.Module, str] = {}
        self.targets: dict[tuple[int, int], str] = {}
        """(operator, bytes) of a phase's highest point in an earlier step -> the phase."""
        self.look: Look | None = None
        self._interrupted = interrupted
        self._progress = progress
        self._home: object = None
        self._in_place = in_place
        """Gradients that meet in autograd's buffers are added in place, as in a run without a dispatch mode."""
        self._alone: Uses | None = None
        self._stack = ExitStack()

    # ------------------------------------------------------------------ what the step tells

    def enter(self, phase: str) -> None:
        """From now on the step is in this phase."""
        self.phase = phase
        self.account.enter(phase)
        if phase == "backward":
            self.modules.clear()
        self._progress(phase, "")

    def follow(self, model: nn.Module) -> None:
        """Name the modules of the model, and count what it holds already."""
        self.names = {module: name for name, module in model.named_modules()}
        self.hold([*model.parameters(), *model.buffers()])

    def hold(self, found: object) -> None:
        """Count tensors that were there before the step."""
        for tensor in plain_tensors(found):
            self.account.add(tensor, "", "init", "", "")

    # ------------------------------------------------------------------ interception

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count what came out."""
        if any(is_wrapper(kind) for kind in types):
            return NotImplemented  # DTensor and its like first become operators on plain tensors
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))  # a question (which device?), asked where nothing may be raised
        if self._interrupted():
            raise KeyboardInterrupt
        if func is torch.ops._c10d_functional.wait_tensor.default:  # noqa: SLF001
            return args[0]  # its fake kernel would make a new tensor; the real one waits
        if func in ATTENTION_BACKWARD and args[0] is None:
            return None, None, None  # as CUDA's do; the meta function makes gradients of nothing (DDP's unused outputs)
        if func in PRODUCTS:
            _demand_one_dtype(args)
        out = self._added(args) if func is torch.ops.aten.add.Tensor and not kwargs else None
        out = _grouped(args) if func is torch.ops.aten._grouped_mm.default else out  # noqa: SLF001
        out = func(*args, **(kwargs or {})) if out is None else out
        if active_fake_mode() is self._home and not self.paused:
            self.account.operators += 1
            name = func._schema.name.rpartition("::")[2]  # noqa: SLF001
            module = self.modules[-1] if self.modules else ""
            for tensor in plain_tensors(out):
                self.account.add(tensor, name, self.phase, module, self.region)
            self.mark(name, out)
        return out

    def _added(self, args: Any) -> Any:
        """The first of two gradients with the second added to it, where autograd alone holds it; None elsewhere."""
        first, second = args
        if self.phase != "backward" or torch.is_grad_enabled():
            return None
        if not isinstance(second, torch.Tensor) or first.shape != second.shape:
            return None
        return first.add_(second) if uses(first) == self._alone else None

    def mark(self, name: str, out: object = None) -> None:
        """The present as a candidate for the phase's highest point."""
        account = self.account
        top = account.tops.get(self.phase)
        if top is None or account.total > top.bytes:
            first = next(plain_tensors(out), None)
            shape = "" if first is None else f" {list(first.shape)} {short(first.dtype)}"
            where = f" in {self.modules[-1]}" if self.modules and self.modules[-1] else ""
            profiled = name.startswith("_record_function")  # a name for the profiler: it makes nothing
            account.note(self.phase, "before its first operation" if profiled else f"{name}{shape}{where}")
        if self.look is not None and self.targets:
            phase = self.targets.pop((account.operators, account.total), None)
            if phase is not None:
                self.look(phase)

    def __enter__(self) -> Tracer:
        """Intercept operators, in-place resizing, module calls and FSDP2's collectives."""
        self._home = active_fake_mode()
        self._alone = alone() if self._in_place else None
        resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            if self.account.resize(storage):
                self.mark("resize_")

        hooks = nn.modules.module
        self._stack.enter_context(patched(torch.UntypedStorage, "resize_", resize_))
        for handle in (
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ):
            self._stack.callback(handle.remove)
        self._stack.enter_context(shape_propagation(self))
        self._stack.enter_context(collectives(self))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Put everything back."""
        super().__exit__(*error)
        self._stack.close()

    def _enter_module(self, module: nn.Module, _inputs: object) -> None:
        name = self.names.get(module)
        if name is not None:
            self.modules.append(name)
            self._progress(self.phase, name)

    def _leave_module(self, module: nn.Module, _inputs: object, _output: object) -> None:
        name = self.names.get(module)
        if name is not None and name in self.modules:
            while self.modules.pop() != name:
                pass


def _demand_one_dtype(args: Any) -> None:
    """What CUDA's products demand and their meta functions do not (aten/src/ATen/native/cuda/Blas.cpp)."""
    found = sorted({short(tensor.dtype) for tensor in args if isinstance(tensor, torch.Tensor)})
    if len(found) > 1:
        raise RefusedStepError(
            f"CUDA would not run this step: expected m1 and m2 to have the same dtype, but got: {' != '.join(found)}",
            "see that one product does not read two dtypes, such as a buffer in fp32 with gathered bf16 parameters",
        )


def _grouped(args: Any) -> torch.Tensor | None:
    """What a grouped product of other dtypes than bf16 gives: its meta function refuses what CUDA computes expert by
    expert into one output (aten/src/ATen/native/cuda/GroupedBlas.cpp, _grouped_mm_fallback); None for bf16.
    """
    first, second, offsets = args[:3]
    if first.dtype is torch.bfloat16:
        return None
    rows = (offsets.shape[0], first.shape[0]) if second.dim() == 2 else (first.shape[0],)
    return first.new_empty(*rows, second.shape[-1])
