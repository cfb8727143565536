"""Which layers a pipeline rank holds, chunk by chunk.

Sources: Megatron-core ``transformer/transformer_block.py`` (get_num_layers_to_build), ``transformer_layer.py``
(get_transformer_layer_offset), ``pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.layout_text import stages_of_layout
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.job.types import Layout, TrainingJob
from memcheck.record import Record

MAX_PREDICTIONS = 128
"""Multi-token-prediction layers; each has a head of its own that is walked."""

MAX_CHUNKS = 256
"""Model chunks of a rank; what is live at the same time as each of them is walked."""


class Chunk(Record):
    """One model chunk of a rank: a run of layers, with the embedding or the head at its ends."""

    layers: tuple[int, ...]
    """The numbers of its layers in the model."""
    embedding: bool
    """The chunk begins with the embedding."""
    head: bool
    """The chunk ends with the final norm and the output layer."""
    mtp: int = 0
    """Multi-token-prediction layers."""


def stages(num_layers: int, job: TrainingJob) -> tuple[tuple[Chunk, ...], ...]:
    """Return the model chunks of every pipeline rank: which layers, and which ends of the model, each one has.

    Raises:
        UnsupportedError: there are too many prediction layers or chunks, or a written layout does not fit the ranks.
    """
    layout = job.layout
    code = code_of(job.framework.style)
    if layout.pipeline > 1 and code.cut is not None:
        return code.cut(job)
    if int(str(job.option("mtp_num_layers") or 0)) > MAX_PREDICTIONS:
        raise UnsupportedError(
            f"mtp_num_layers is above {MAX_PREDICTIONS:,}, up to which prediction layers are estimated",
            f"write at most {MAX_PREDICTIONS:,}; models are trained with one to three",
            "/training/options/mtp_num_layers",
        )
    if virtual_stages(num_layers, job) > MAX_CHUNKS:
        raise UnsupportedError(
            f"a rank has more than {MAX_CHUNKS} model chunks, up to which interleaved schedules are estimated",
            "give each chunk more layers; models are trained with two to eight chunks on a rank",
            "/parallelism/virtual_stages",
        )
    return _chunks_by_rank(num_layers, layout.pipeline, layout.virtual_stages, job.options)


class _PipelineSplit(Record):
    """What decides where a pipeline is cut: the part of a job that is read here."""

    layout: Layout
    options: tuple[tuple[str, object], ...]

    def option(self, name: str) -> object:
        return dict(self.options).get(name)


@lru_cache(maxsize=1024)
def _chunks_by_rank(
    num_layers: int, ranks: int, virtual_stages: int, options: tuple[tuple[str, object], ...]
) -> tuple[tuple[Chunk, ...], ...]:
    """Return the model chunks of every pipeline rank, cached by the sizes that decide them.

    ``ranks``: pipeline-parallel size. ``virtual_stages``: chunks per rank. ``options``: the plan's Megatron options.
    """
    job = _PipelineSplit(Layout(pipeline=ranks, virtual_stages=virtual_stages), options)
    return tuple(map(tuple, _cut_into_chunks(num_layers, job)))


def _cut_into_chunks(num_layers: int, job: _PipelineSplit) -> list[list[Chunk]]:
    """Cut the model into chunks, per pipeline rank: layers in order, virtual stage after virtual stage.

    The embedding is in the first chunk; head and multi-token prediction are in the last one.
    """
    ranks = job.layout.pipeline
    mtp = int(str(job.option("mtp_num_layers") or 0))
    layout = job.option("pipeline_model_parallel_layout")
    if layout:
        return _from_layout(layout, ranks, job)
    virtual = virtual_stages(num_layers, job)
    counts = _layers_per_chunk(num_layers, job, ranks, virtual)
    chunks_of_rank: list[list[Chunk]] = [[] for _ in range(ranks)]
    start = 0
    for virtual_stage in range(virtual):
        for rank in range(ranks):
            end = start + counts[virtual_stage][rank]
            last = virtual_stage == virtual - 1 and rank == ranks - 1
            chunks_of_rank[rank].append(
                Chunk(
                    layers=tuple(range(start, end)),
                    embedding=virtual_stage == 0 and rank == 0,
                    head=last,
                    mtp=mtp if last else 0,
                )
            )
            start = end
    return chunks_of_rank


def virtual_stages(num_layers: int, job: TrainingJob | _PipelineSplit) -> int:
    """Return the number of model chunks per rank (virtual pipeline stages)."""
    per_stage = job.option("num_layers_per_virtual_pipeline_stage")
    if per_stage:
        return max(1, num_layers // job.layout.pipeline // int(str(per_stage)))
    return max(1, job.layout.virtual_stages)


def _first_stated(job: _PipelineSplit, *names: str) -> int | None:
    """Return the first of the options ``names`` that the job states, as a number of layers."""
    for name in names:
        value = job.option(name)
        if value is not None:
            return int(str(value))
    return None


def _layers_per_chunk(num_layers: int, job: _PipelineSplit, ranks: int, virtual: int) -> list[list[int]]:
    """Return the number of layers of each chunk: ``counts[virtual_stage][rank]``.

    ``ranks``: pipeline-parallel size; ``virtual``: chunks of a rank. The plan may state the layers of the first and the
    last rank. Source: Megatron-core transformer_block.py, get_num_layers_to_build.
    """
    first_stage = _first_stated(job, "decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage")
    last_stage = _first_stated(job, "decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage")
    # The first or last rank has a stated number of layers; the others share the rest evenly.
    if first_stage is not None or last_stage is not None:
        middle_ranks = ranks - (first_stage is not None) - (last_stage is not None)
        middle_layers = num_layers - (first_stage or 0) - (last_stage or 0)
        even = _divide_evenly(middle_layers, middle_ranks) if middle_ranks else []
        layers_of_rank = even
        if first_stage is not None:
            layers_of_rank = [first_stage, *layers_of_rank]
        if last_stage is not None:
            layers_of_rank = [*layers_of_rank, last_stage]
        return [[_even_share(layers, virtual, stage) for layers in layers_of_rank] for stage in range(virtual)]
    # The embedding and the loss may each count as a layer, which their stage then lacks.
    embedding = bool(job.option("account_for_embedding_in_pipeline_split"))
    loss = bool(job.option("account_for_loss_in_pipeline_split"))
    layers_of_stage = _divide_evenly(num_layers + embedding + loss, ranks * virtual)
    layers_of_stage[0] -= embedding
    layers_of_stage[-1] -= loss
    return [layers_of_stage[stage * ranks : (stage + 1) * ranks] for stage in range(virtual)]


def _divide_evenly(count: int, parts: int) -> list[int]:
    """Divide ``count`` layers over ``parts``; the first parts get one more if there is a remainder."""
    base, extra = divmod(count, parts)
    return [base + (1 if i < extra else 0) for i in range(parts)]


def _even_share(count: int, parts: int, index: int) -> int:
    """The layers of part ``index`` where ``count`` layers are divided over ``parts``."""
    return _divide_evenly(count, parts)[index]


def _from_layout(layout: object, ranks: int, job: _PipelineSplit) -> list[list[Chunk]]:
    """Return the chunks of each pipeline rank that ``pipeline_model_parallel_layout`` states.

    Letters: t is a layer, E the embedding, L the loss, m a prediction layer (MTP). Stages are dealt out to ``ranks`` in
    turn.

    Raises:
        UnsupportedError: the number of stages is no multiple of the pipeline ranks.
    """
    stages = stages_of_layout(layout)
    if not stages or len(stages) % ranks:
        raise UnsupportedError(
            f"pipeline_model_parallel_layout has {len(stages)} stages, which {ranks} pipeline ranks do not divide",
            f"separate a multiple of {ranks} stages with |",
            "/training/options/pipeline_model_parallel_layout",
        )
    chunks_of_rank: list[list[Chunk]] = [[] for _ in range(ranks)]
    start = 0
    for index, letters in enumerate(stages):
        end = start + letters.count("t")
        chunks_of_rank[index % ranks].append(
            Chunk(
                layers=tuple(range(start, end)), embedding="E" in letters, head="L" in letters, mtp=letters.count("m")
            )
        )
        start = end
    return chunks_of_rank
