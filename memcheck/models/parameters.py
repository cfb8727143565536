"""Parameter tensors of an architecture, and sums over them.

The parameter tensors of tables of other tokens than words (Gemma 3n).
"""

from __future__ import annotations

from memcheck.models.decoder import linear, norm_tensors
from memcheck.models.types import Architecture, Block, ParameterTensor


def block_tensors(block: Block) -> tuple[ParameterTensor, ...]:
    """List every parameter tensor of one layer.

    Tensors that it shares with later layers are left out: the last layer that uses them counts them.
    """
    if block.shared_with.later:
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
    """Return the input width of the head's matrix: the embedding's, or that of the transform before the head."""
    if architecture.head_layer.activation:
        return architecture.head_layer.tensors[-1].shape[0]
    return architecture.embedding_size


def outer_tensors(architecture: Architecture) -> tuple[ParameterTensor, ...]:
    """List every parameter tensor outside the layers, with its full path: embeddings, final norm, head.

    A tied head is the embedding and is not listed twice.
    """
    model, paths = architecture, architecture.paths
    tensors = [
        ParameterTensor(
            paths.embedding + ".weight", (model.table_rows, model.embedding_size), "embedding", shard="vocab"
        )
    ]
    width = model.embedding_size if model.embedding_module.is_separate else model.hidden_size
    if model.learned_positions:
        tensors.append(ParameterTensor(paths.positions + ".weight", (model.learned_positions, width), "position"))
    tensors += norm_tensors(model.embedding_norm)
    tensors += model.extra_tensors
    tensors += norm_tensors(model.final_norm)
    tensors += model.head_layer.tensors
    if model.head and not model.tie_word_embeddings:
        shape = (model.vocab_size, head_width(model))
        tensors.append(ParameterTensor(paths.head + ".weight", shape, "head", shard="vocab", linear=True))
    if model.head and model.head_bias:
        tensors.append(ParameterTensor(paths.head + ".bias", (model.vocab_size,), "head", shard="vocab"))
    return (*tensors, *task_tensors(model), *(model.task.unused if model.task is not None else ()))


def task_tensors(architecture: Architecture) -> tuple[ParameterTensor, ...]:
    """List the tensors of a head for labels: a pooler's, and the matrix from hidden states to labels.

    transformers ``modeling_layers.py``: ``self.score``. None for a language model.
    """
    if architecture.task is None or not architecture.task.labels:
        return ()
    task = architecture.task
    tensors = list(task.pooling.tensors) if task.pooling is not None else []
    tensors.append(ParameterTensor("score.weight", (task.labels, architecture.hidden_size), "head", linear=True))
    if task.bias:
        tensors.append(ParameterTensor("score.bias", (task.labels,), "head"))
    return tuple(tensors)


def tower_runs(architecture: Architecture) -> tuple[tuple[tuple[ParameterTensor, ...], int, str], ...]:
    """Return the tensors of every tower, projector and encoder, as (tensors, how many equal layers have them, part)."""
    runs: list[tuple[tuple[ParameterTensor, ...], int, str]] = []
    vision = architecture.vision
    if vision is not None:
        runs.append((vision.stem_tensors + vision.middle_tensors, 1, "vision"))
        runs += [(block_tensors(block), times, "vision") for block, times in (*vision.blocks, *vision.idle_blocks)]
        runs += [
            (vision.closing_tensors + vision.unused_tensors, 1, "vision"),
            (vision.projector_tensors, 1, "projector"),
        ]
    for tower in architecture.others:
        runs += [(block_tensors(block), times, tower.part) for block, times in tower.blocks]
        runs.append((tower.tensors, 1, tower.part))
    if architecture.embedders:
        runs.append((embedder_tensors(architecture), 1, "projector"))
    if architecture.encoder is not None:
        runs += [(block_tensors(block), times, "encoder") for block, times in architecture.encoder.blocks]
        runs.append((architecture.encoder.tensors, 1, "encoder"))
    return tuple(runs)


def count_parameters(architecture: Architecture) -> int:
    """Count the parameters; a tied head counts once.

    Equal to ``sum(p.numel() for p in model.parameters())`` of the model that transformers builds.
    """
    parameters = sum(tensor.count for tensor in outer_tensors(architecture))
    for block, layers in architecture.blocks:
        parameters += layers * sum(tensor.count for tensor in block_tensors(block))
    for tensors, layers, _ in tower_runs(architecture):
        parameters += layers * sum(tensor.count for tensor in tensors)
    return parameters


def parameters_by_group(architecture: Architecture) -> dict[str, int]:
    """Return the number of parameters in each group of :class:`ParameterTensor`; their sum is
    :func:`count_parameters`.
    """
    groups: dict[str, int] = {}
    for tensor in outer_tensors(architecture):
        groups[tensor.group] = groups.get(tensor.group, 0) + tensor.count
    for block, times in architecture.blocks:
        for tensor in block_tensors(block):
            groups[tensor.group] = groups.get(tensor.group, 0) + times * tensor.count
    for tensors, times, group in tower_runs(architecture):
        groups[group] = groups.get(group, 0) + times * sum(tensor.count for tensor in tensors)
    return groups


def embedder_tensors(architecture: Architecture) -> tuple[ParameterTensor, ...]:
    """Return the tensors of embedding tables of image and audio tokens, with the norms and matrices after them."""
    tensors: tuple[ParameterTensor, ...] = ()
    for embedder in architecture.embedders:
        tensors += (ParameterTensor(f"{embedder.name}.embedding.weight", (embedder.rows, embedder.width), "projector"),)
        tensors += (ParameterTensor(f"{embedder.name}.hard_embedding_norm.weight", (embedder.width,), "norm"),)
        tensors += linear(
            f"{embedder.name}.embedding_projection", architecture.hidden_size, embedder.width, "projector", "none"
        )
    return tensors


def linear_tensors(tensors: tuple[ParameterTensor, ...]) -> list[ParameterTensor]:
    """List the matrices of a component that gradients reach, in the order of its forward pass."""
    return [t for t in tensors if t.linear and not t.fixed]
