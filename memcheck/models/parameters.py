"""Parameter tensors of an architecture, and sums over them.

The parameter tensors of tables of other tokens than words (Gemma 3n).
"""

from __future__ import annotations

from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.types import Architecture, Block, ParameterTensor


def block_tensors(block: Block) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor of one layer, without those that a later one holds."""
    if block.uses_later_weights:
        own = block.second_mixer.tensors if block.second_mixer is not None else ()
        return own + norm_tensors(block.mixer_output_norm) + block.extra_tensors
    mixer = block.mixer.tensors if block.mixer is not None else ()
    mlp = block.mlp.tensors if block.mlp is not None else ()
    if block.second_mixer is not None:
        mixer += block.second_mixer.tensors
    if block.cross is not None:
        mixer += block.cross.attention.tensors
    norms = tuple(t for norm in block.norms for t in norm_tensors(norm))
    return mixer + mlp + norms + block.extra_tensors


def head_width(architecture: Architecture) -> int:
    """Channels of the head's matrix: the table's, or those of what stands in front of it."""
    return architecture.head_tensors[-1].shape[0] if architecture.head_transform else architecture.embedding_size


def outer_tensors(architecture: Architecture) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor outside the layers, with its full path; a tied head is the embedding, not repeated."""
    a, paths = architecture, architecture.paths
    tensors = [
        ParameterTensor(paths.embedding + ".weight", (a.table_rows, a.embedding_size), "embedding", shard="vocab")
    ]
    width = a.embedding_size if a.embeddings_apart else a.hidden_size
    if a.learned_positions:
        tensors.append(ParameterTensor(paths.positions + ".weight", (a.learned_positions, width), "position"))
    tensors += norm_tensors(a.embedding_norm)
    tensors += a.extra_tensors
    tensors += norm_tensors(a.final_norm)
    tensors += a.head_tensors
    if a.head and not a.tie_word_embeddings:
        shape = (a.vocab_size, head_width(a))
        tensors.append(ParameterTensor(paths.head + ".weight", shape, "head", shard="vocab", linear=True))
    if a.head and a.head_bias:
        tensors.append(ParameterTensor(paths.head + ".bias", (a.vocab_size,), "head", shard="vocab"))
    return (*tensors, *task_tensors(a), *(a.task.idle if a.task is not None else ()))


def task_tensors(architecture: Architecture) -> tuple[ParameterTensor, ...]:
    """The matrix from hidden states to labels (transformers ``modeling_layers.py``: ``self.score``)."""
    if architecture.task is None or not architecture.task.labels:
        return ()
    tensors = architecture.task.pooling.tensors if architecture.task.pooling is not None else ()
    tensors = (
        *tensors,
        ParameterTensor("score.weight", (architecture.task.labels, architecture.hidden_size), "head", linear=True),
    )
    return (
        (*tensors, ParameterTensor("score.bias", (architecture.task.labels,), "head"))
        if architecture.task.bias
        else tensors
    )


def tower_runs(architecture: Architecture) -> tuple[tuple[tuple[ParameterTensor, ...], int, str], ...]:
    """The tensors of every tower, projectors included, and of an encoder: (tensors, how many times, their part)."""
    found: list[tuple[tuple[ParameterTensor, ...], int, str]] = []
    v = architecture.vision
    if v is not None:
        found.append((v.stem + v.between_tensors, 1, "vision"))
        found += [(block_tensors(block), n, "vision") for block, n in (*v.blocks, *v.idle)]
        found += [(v.closing + v.unused, 1, "vision"), (v.projector, 1, "projector")]
    for tower in architecture.others:
        found += [(block_tensors(block), n, tower.part) for block, n in tower.blocks]
        found.append((tower.tensors, 1, tower.part))
    if architecture.embedders:
        found.append((embedder_tensors(architecture), 1, "projector"))
    if architecture.encoder is not None:
        found += [(block_tensors(block), n, "encoder") for block, n in architecture.encoder.blocks]
        found.append((architecture.encoder.tensors, 1, "encoder"))
    return tuple(found)


def count_parameters(architecture: Architecture) -> int:
    """Number of parameters; a tied head counts once.

    Equal to ``sum(p.numel() for p in model.parameters())`` of the model that transformers builds.
    """
    inside = sum(n * sum(t.count for t in block_tensors(block)) for block, n in architecture.blocks)
    side = sum(n * sum(t.count for t in tensors) for tensors, n, _ in tower_runs(architecture))
    return inside + side + sum(t.count for t in outer_tensors(architecture))


def parameters_by_group(architecture: Architecture) -> dict[str, int]:
    """Number of parameters per group of :class:`ParameterTensor`; the groups add up to :func:`count_parameters`."""
    groups: dict[str, int] = {}
    for t in outer_tensors(architecture):
        groups[t.group] = groups.get(t.group, 0) + t.count
    for block, n in architecture.blocks:
        for t in block_tensors(block):
            groups[t.group] = groups.get(t.group, 0) + n * t.count
    for tensors, n, part in tower_runs(architecture):
        groups[part] = groups.get(part, 0) + n * sum(t.count for t in tensors)
    return groups


def embedder_tensors(architecture: Architecture) -> tuple[ParameterTensor, ...]:
    """The tensors of tables of other tokens, with the norms and matrices after them."""
    tensors: tuple[ParameterTensor, ...] = ()
    for e in architecture.embedders:
        tensors += (ParameterTensor(f"{e.name}.embedding.weight", (e.rows, e.width), "projector"),)
        tensors += (ParameterTensor(f"{e.name}.hard_embedding_norm.weight", (e.width,), "norm"),)
        tensors += linear(f"{e.name}.embedding_projection", architecture.hidden_size, e.width, "projector", "none")
    return tensors


def linear_tensors(tensors: tuple[ParameterTensor, ...]) -> list[ParameterTensor]:
    """The matrices of a component that gradients reach, in the order of its forward pass."""
    return [t for t in tensors if t.linear and not t.fixed]
