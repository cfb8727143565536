"""nanotron.

Sources: huggingface/nanotron 2411b022 of April 2026 (``src/nanotron/config/*.py``, ``helpers.py``, ``trainer.py``,
``optim``, ``parallel``). Parameters are 16-bit. Gradients in autograd's dtype are added to an fp32 buffer after each
backward. There are an fp32 master copy and AdamW's two states. ``REDUCE_SCATTER`` is sequence parallelism; pipelines
run 1F1B or all forwards first.

Where nanotron cuts a pipeline: by what each block costs to compute, the head among them.

Source: nanotron ``models/base.py`` (build_model), ``models/llama.py`` (LlamaModel.get_block_compute_costs).
"""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.stages import Chunk
from memcheck.frameworks.megatron.tensors import padded_vocabulary
from memcheck.job import recipe as r
from memcheck.job.framework import Framework, LoadAndSave, Losses, Optimizers, Parallelism, Precisions
from memcheck.job.lookup import NORM, Families, parts, words
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Block, Mlp

FAMILIES = Families(
    words("llama qwen2"),
    parts(
        Attention="heads kv_heads head_dim qkv_bias rotary_dim tensors",
        Mlp="width gated activation tensors",
        Block="mixer mlp input_norm mlp_norm",
        Norm=NORM,
    ),
    source="nanotron's models",
)
"""Models that nanotron builds and that have a memory model."""

_BF16 = r.BF16_PURE._replace(recipe="bf16-mixed", gradients="fp32", master="fp32", optimizer_states="fp32")
_FP16 = r.FP16_PURE._replace(recipe="fp16-mixed", gradients="fp32", master="fp32", optimizer_states="fp32")

FRAMEWORK = Framework(
    name="nanotron",
    title="nanotron",
    source="huggingface/nanotron 2411b022",
    style=Style(
        folder="nanotron",
        activation_layout="sequence-first",
        source="nanotron's models and flash-attn's functions, replayed by memcheck.frameworks",
    ),
    families=FAMILIES,
    precisions=Precisions(
        default="bf16-mixed",
        # without `accumulate_grad_in_fp32` everything has the dtype of the model, and gradients rest between backwards
        recipes={"bf16-mixed": _BF16, "fp16-mixed": _FP16, "bf16-pure": r.BF16_PURE, "fp32": r.FP32},
    ),
    optimizers=Optimizers(implementation="fused", by_name={"sgd": "foreach"}, bitsandbytes=False),
    losses=Losses(default="vocab-parallel", kinds=("vocab-parallel",), vocab_parallel_when="always"),
    parallelism=Parallelism(
        zero_stages=(0, 1),
        degrees=("tensor", "sequence", "pipeline"),
        schedules=("1f1b", "gpipe"),
        pads_vocabulary=True,
    ),
    methods=("full",),
    default_attention="flash",
    attentions=("flash",),
    recompute=("none", "full"),
    options={
        "make_vocab_size_divisible_by": (int,),
        "model_class": (str,),
        "rope_interleaved": (bool,),
        "tp_linear_async_communication": (bool,),
        "tp_recompute_allgather": (bool,),
    },
    choices={"model_class": ("llama", "qwen2")},
    lacks={
        "parallelism.reshard_after_forward": "it shards no parameters (nanotron/optim/zero.py)",
        "parallelism.gradient_sync": "gradients are reduced with the last micro-batch of a step "
        "(nanotron/parallel/pipeline_parallel/engine.py, _get_bwd_context)",
        "parallelism.gradient_as_bucket_view": "its DistributedDataParallel is made without (nanotron/trainer.py, "
        "_init_model)",
        "training.precision.reduce": "gradients are reduced in their buffer's dtype "
        "(nanotron/optim/gradient_accumulator.py)",
        "training.precision.params": "parameters have the dtype of the recipe (nanotron/models/base.py, build_model)",
        "training.precision.gradients": "sums are fp32, or, without a master copy, in the parameters' dtype "
        "(nanotron/optim/gradient_accumulator.py)",
        "training.precision.master": "there is an fp32 master copy where gradients are summed in fp32 "
        "(nanotron/optim/gradient_accumulator.py)",
        "training.precision.optimizer_states": "states have the dtype of what is stepped (nanotron/helpers.py)",
        "training.activation_checkpointing.offload": "what checkpoints keep stays on the GPU (nanotron/models)",
        "training.loss.upcast": "its loss always takes an fp32 copy of the logits "
        "(nanotron/parallel/tensor_parallel/functional.py)",
        "training.loss.keep_logits": "its model returns the loss alone (nanotron/models)",
    },
    load_and_save=LoadAndSave(initialization=("device", "device"), checkpoint=("sharded", "sharded")),
    clip_grad_norm=True,
    allocators=("default",),
    data_parallel="distributed-optimizer",
    measured_as="megatron",
    errors_by_model=True,
    stack="megatron",
    timing="nanotron",
    not_run="nanotron's own model code is not run",
)


def costed_stages(job: TrainingJob) -> tuple[tuple[Chunk, ...], ...]:
    """Divide the layers over the pipeline ranks as nanotron does: one chunk for each rank.

    A rank gets layers until their summed cost exceeds its share of the model's cost, which includes the head.

    Raises:
        UnsupportedError: a rank gets no layer, on which nanotron's ranks end in an error.
    """
    architecture, pipeline_ranks = job.architecture, job.layout.pipeline
    if not isinstance(architecture, Architecture):
        raise UnsupportedError("nanotron cuts a pipeline by what its layers cost, which are not known here")
    head = padded_vocabulary(architecture.vocab_size, job) * architecture.hidden_size
    costs = [_cost(block, architecture.hidden_size) for block in architecture.layers()]
    total, cost_so_far, rank = sum(costs) + head, 0, 0
    layers_of_rank: list[list[int]] = [[] for _ in range(pipeline_ranks)]
    for index, cost in enumerate(costs):
        layers_of_rank[rank].append(index)
        cost_so_far += cost
        if cost_so_far * pipeline_ranks > total * (rank + 1):
            rank += 1
    if rank < pipeline_ranks - 1 or not all(layers_of_rank[:-1]):
        message = f"nanotron cuts {len(costs)} layers and the head by their cost, which leaves a pipeline rank empty"
        raise UnsupportedError(message, "use fewer pipeline ranks", "/parallelism/pipeline")
    return tuple(
        (Chunk(layers=tuple(layers), has_embedding=number == 0, has_head=number == rank),)
        for number, layers in enumerate(layers_of_rank)
    )


def _cost(block: Block, hidden: int) -> int:
    """Return nanotron's cost of one layer, by which it cuts the stages: the elements of four square matrices in
    attention (q, k, v, output) and of three in the feed-forward network (gate, up, down).
    """
    cost = 0
    if isinstance(block.mixer, Attention):
        cost += 4 * block.mixer.heads * block.mixer.head_dim * hidden
    if isinstance(block.mlp, Mlp):
        cost += 3 * block.mlp.width * hidden
    return cost
