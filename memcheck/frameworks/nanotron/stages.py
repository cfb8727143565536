"""Where nanotron cuts a pipeline: by what each block costs to compute, the head among them.

Source: nanotron ``models/base.py`` (build_model), ``models/llama.py`` (LlamaModel.get_block_compute_costs).
"""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.stages import Chunk
from memcheck.frameworks.megatron.tensors import padded_vocabulary
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Block, Mlp


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
        (Chunk(layers=tuple(layers), embedding=number == 0, head=number == rank),)
        for number, layers in enumerate(layers_of_rank)
    )


def _cost(block: Block, hidden: int) -> int:
    """Return nanotron's cost of one layer, by which it cuts the stages: the elements of four square matrices in
    attention (q, k, v, output) and of three in the feed-forward network (gate, up, down).
    """
    mixer, mlp = block.mixer, block.mlp
    attention = 4 * mixer.heads * mixer.head_dim * hidden if isinstance(mixer, Attention) else 0
    return attention + (3 * mlp.width * hidden if isinstance(mlp, Mlp) else 0)
