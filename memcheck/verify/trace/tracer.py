"""Follows every storage that an operator makes, from birth to death."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, final

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode

from memcheck.verify.build.dtypes import short
from memcheck.verify.build.subclass import is_wrapper, plain_tensors
from memcheck.verify.errors import RefusedStepError
from memcheck.verify.trace.account import Account
from memcheck.verify.trace.accumulate import Uses, alone, uses
from memcheck.verify.trace.patch import patched
from memcheck.verify.trace.regions import collectives, shape_propagation

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
        if torch.is_grad_enabled() or not isinstance(second, torch.Tensor) or first.shape != second.shape:
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
