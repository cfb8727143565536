"""Stacked experts whose matrices rest in four bits, and are dequantised where a forward reads them.

Sources: bitsandbytes 0.50 nn/parametrize.py (``Bnb4bitParametrization``, without a graph; the cache that its hooks keep
open until the module's forward returns) and functional.py (``dequantize_4bit``); Axolotl 067b021c
monkeypatch/moe_quant.py (``patch_moe_quantization_on_load``).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.quantised import BLOCK
from memcheck.autograd.tensor import Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.stacked_adapters import adapted_tensors
from memcheck.job.types import TrainingJob
from memcheck.models.feed_forward_types import DenseDispatchMoe, StreamMoe
from memcheck.models.types import Architecture, Block, Moe

OPTION = "quantize_experts"
PLACE = f"/training/options/{OPTION}"


def dequantised(ctx: Context, shape: tuple[int, int, int], storage: str) -> Value:
    """Dequantise all experts' matrices of one parameter to 16 bits, ``shape``; their constants are briefly in fp32."""
    tape = ctx.tape
    constants = -(-shape[0] * shape[1] * shape[2] // BLOCK) if "single" not in storage else 0
    absmax = [tape.new((constants,), "fp32", "4-bit constants") for _ in range(2)] if constants else []
    out = tape.value(shape, ctx.setting.autocast_dtype or ctx.setting.compute_dtype, "dequantised experts")
    del absmax
    return out


def refuse_experts(job: TrainingJob) -> None:
    """Check that the option that quantises the job's experts has a memory model.

    Raises:
        UnsupportedError: the option has no memory model here.
    """
    from memcheck.frameworks.torch.rank_tensors import placement_of

    architecture, layout, adapter = job.architecture, job.layout, placement_of(job).adapter
    mixtures = (
        [b for b, _ in architecture.blocks if isinstance(b.mlp, Moe)] if isinstance(architecture, Architecture) else []
    )
    stacks = [adapted_tensors(adapter, b.mlp) for b in mixtures if isinstance(b.mlp, Moe)]
    adapted = any(".experts." in f".{factors.name}" for stack in stacks for factors in stack)
    adapted = adapted or (job.lora is not None and bool(job.lora.target_parameters))
    cases = (
        (job.method == "full" or not job.base_format, "without a base in four bits", "choose method: qlora"),
        (
            job.base_format.startswith("int8"),
            "in 8 bits, whose dequantised copies Axolotl's hooks never release under recompute,",
            "load the base in four bits",
        ),
        (not job.base_format.startswith(("nf4", "fp4")), f"in {job.base_format}", "load the base in four bits"),
        (adapted, "with adapters of their own", "leave those out"),
        (layout.zero_stage > 1, "that are sharded", "choose parallelism.zero_stage: 0"),
        (layout.expert > 1 or layout.tensor > 1, "on several ranks", "leave the degree out"),
        (any(isinstance(b.mlp, DenseDispatchMoe) for b in mixtures), "that all tokens pass", "leave it out"),
        (
            job.checkpointing.mode != "none" and any(_ends_inside(b) for b in mixtures),
            "that end their layer: recompute stops inside them, and bitsandbytes up to 0.49.2 keeps every layer's,",
            "leave recompute or the option out",
        ),
    )
    for there, which, help in cases:
        if there:
            raise UnsupportedError(f"quantised experts {which} have no memory model", help, PLACE)


def _ends_inside(block: Block) -> bool:
    """Whether nothing after the experts keeps a tensor, so that a checkpoint's recompute ends within their forward."""
    m = block.mlp
    if not isinstance(m, Moe) or block.mlp_output_norm is not None or isinstance(m, StreamMoe):
        return False
    return not m.shared_width or (m.shared_first and not m.shared_gate)
