"""Liger's kernels in transformers' modules: what each keeps, and which families they are put into.

Sources: Liger-Kernel 0.8.5 ops/rms_norm.py, ops/swiglu.py, ops/geglu.py, ops/rope.py and
transformers/monkey_patch.py (``apply_liger_kernel_to_*``). They are autograd functions around Triton kernels: what
they allocate is in their Python code. The fused head and loss are ``training.loss: fused-linear``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Patched
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import matrix
from memcheck.autograd.operator import copy
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.job.types import LIGER_KERNELS, TrainingJob
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Architecture, Mlp

ACTIVATIONS = ("silu", "swish", "gelu_pytorch_tanh")
POINTER = "/training/kernels/liger"


_BEHIND_BRANCHES = Patched(norm_in_place=False)
_OLMO = Patched(norm_in_place=False, head_norms=False)
_EXPERTS = Patched(glu=False)
FAMILIES = {
    "exaone4": _BEHIND_BRANCHES,
    "gemma": Patched(),
    "gemma2": _BEHIND_BRANCHES,
    "gemma3_text": _BEHIND_BRANCHES,
    "glm4": Patched(rope=False, norm_in_place=False),
    "granite": Patched(),
    "hunyuan_v1_dense": Patched(head_norms=False),
    "llama": Patched(),
    "ministral": Patched(),
    "mistral": Patched(),
    "mixtral": _EXPERTS,
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "phi3": Patched(),
    "qwen2": Patched(),
    "qwen3": Patched(),
    "qwen3_moe": _EXPERTS,
    "smollm3": Patched(),
}
"""``glu`` of a mixture of experts is a kernel for all experts, which has no model here."""


def modelled(architecture: Architecture) -> tuple[str, ...]:
    """Return the Liger kernels that memcheck models in this architecture."""
    patched = FAMILIES.get(architecture.model_type, Patched(rope=False, rms_norm=False, glu=False))
    if architecture.vision is not None:
        return ()
    gated = all(isinstance(b.mlp, Mlp) and b.mlp.activation in ACTIVATIONS for b, _ in architecture.blocks)
    return tuple(name for name in LIGER_KERNELS if getattr(patched, name) and (name != "glu" or gated))


def refuse_liger(job: TrainingJob, title: str, frameworks: list[str]) -> None:
    """Check that the framework's modules are transformers', and that memcheck models Liger's kernels in this model.

    Raises:
        UnsupportedError: one of the two is not so. ``frameworks``: names of frameworks that run them.
    """
    if job.framework.name not in frameworks:
        message = f"{title} does not run transformers' modules, which Liger's kernels replace"
        raise UnsupportedError(message, f"leave it out; {', '.join(frameworks)} run them", POINTER)
    if not isinstance(job.architecture, Architecture):
        message = "a rough model has no modules that Liger's kernels could replace"
        raise UnsupportedError(message, "leave it out", POINTER)
    liger_of(job, job.architecture)


def liger_of(job: TrainingJob, architecture: Architecture) -> Patched | None:
    """Return which of the model's modules Liger's kernels replace, or None.

    Raises: UnsupportedError: Liger has no such kernel for this family, or memcheck has no model of it. At
    ``training.kernels.liger``.
    """
    if not job.liger:
        return None
    kernels = modelled(architecture)
    without_effect = ("rope",) if architecture.model_type in FAMILIES else ()  # Liger leaves GLM-4's as it is
    missing = [name for name in job.liger if name not in (*kernels, *without_effect)]
    if missing:
        what = ", ".join(missing)
        known = f"write `liger: [{', '.join(kernels)}]`, or leave it out" if kernels else "leave it out"
        message = f"memcheck has no model of Liger's kernels ({what}) in {architecture.model_type}"
        raise UnsupportedError(message, f"{known}: an upper bound", POINTER)
    for requested, what in ((job.layout.tensor > 1, "tensor parallelism"), (job.compile, "torch.compile")):
        if requested:
            message = f"memcheck has no model of Liger's kernels under {what}"
            raise UnsupportedError(message, "leave it out to get the figure without it", POINTER)
    replaced = {name: name in job.liger and name in kernels for name in LIGER_KERNELS}
    return FAMILIES[architecture.model_type]._replace(**replaced)


def glu(ctx: Context, mlp: Mlp, x: Value, variables: list[Value]) -> Value:
    """Compute the gated product of a feed-forward network with Liger's kernel, [tokens, width].

    The kernel reads contiguous tensors, so that the halves of a fused matrix are copied. ``variables``: of the module's
    forward, which keep the fused output alive.
    """
    tape = ctx.tape
    if not mlp.fused_gate_up:
        gate_tensor, up_tensor = linear_tensors(mlp.tensors)[:2]
        return _glu_kernel(tape, matrix(ctx, mlp, x, gate_tensor), matrix(ctx, mlp, x, up_tensor))
    tensor = linear_tensors(mlp.tensors)[0]
    gate_and_up = linear(tape, x, ctx.weights(tensor, mlp.bias, adaptable=mlp.adaptable), tensor.name)
    half = (*gate_and_up.shape[:-1], gate_and_up.shape[-1] // 2)
    gate, up = tape.views(gate_and_up, half, half)
    variables.append(gate)
    return _glu_kernel(tape, copy(tape, gate, "contiguous"), copy(tape, up, "contiguous"))


def _glu_kernel(tape: Tape, gate: Value, up: Value) -> Value:
    """Replay LigerSiLUMulFunction or LigerGELUMulFunction, which keep gate and up and write their gradients over them.

    ``gate``, ``up``: [tokens, width], contiguous (``ensure_contiguous`` copies strided halves).
    """
    out = tape.value(gate.shape, gate.dtype, "liger glu")
    gate_storage, up_storage = gate.storage, up.storage

    def glu_backward(grad: Storage) -> list[Storage | None]:
        return [gate_storage, up_storage]

    return tape.record(out, (gate, up), glu_backward, saves=(gate_storage, up_storage))
