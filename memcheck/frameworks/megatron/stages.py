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
    embedding: bool
    head: bool
    mtp: int = 0
    """Multi-token-prediction layers."""


def stages(num_layers: int, job: TrainingJob) -> tuple[tuple[Chunk, ...], ...]:
    """Chunks of every pipeline rank.

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
    return _stages(num_layers, layout.pipeline, layout.virtual_stages, job.options)


class _Split(Record):
    """What decides where a pipeline is cut: the part of a job that is read here."""

    layout: Layout
    options: tuple[tuple[str, object], ...]

    def option(self, name: str) -> object:
        return dict(self.options).get(name)


@lru_cache(maxsize=1024)
def _stages(
    num_layers: int, ways: int, virtual_stages: int, options: tuple[tuple[str, object], ...]
) -> tuple[tuple[Chunk, ...], ...]:
    job = _Split(Layout(pipeline=ways, virtual_stages=virtual_stages), options)
    return tuple(map(tuple, _cut(num_layers, job)))


def _cut(num_layers: int, job: _Split) -> list[list[Chunk]]:
    ways = job.layout.pipeline
    mtp = int(str(job.option("mtp_num_layers") or 0))
    layout = job.option("pipeline_model_parallel_layout")
    if layout:
        return _from_layout(layout, ways, job)
    virtual = virtual_stages(num_layers, job)
    counts = _counts(num_layers, job, ways, virtual)
    found: list[list[Chunk]] = [[] for _ in range(ways)]
    start = 0
    for v in range(virtual):
        for rank in range(ways):
            end = start + counts[v][rank]
            last = v == virtual - 1 and rank == ways - 1
            found[rank].append(
                Chunk(
                    layers=tuple(range(start, end)), embedding=v == 0 and rank == 0, head=last, mtp=mtp if last else 0
                )
            )
            start = end
    return found


def virtual_stages(num_layers: int, job: TrainingJob | _Split) -> int:
    """Model chunks per rank."""
    per_stage = job.option("num_layers_per_virtual_pipeline_stage")
    if per_stage:
        return max(1, num_layers // job.layout.pipeline // int(str(per_stage)))
    return max(1, job.layout.virtual_stages)


def _uneven(job: _Split, *names: str) -> int | None:
    for name in names:
        value = job.option(name)
        if value is not None:
            return int(str(value))
    return None


def _counts(num_layers: int, job: _Split, ways: int, virtual: int) -> list[list[int]]:
    """Layers of each rank in each virtual stage."""
    first = _uneven(job, "decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage")
    last = _uneven(job, "decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage")
    if first is not None or last is not None:
        middle = ways - (first is not None) - (last is not None)
        rest = num_layers - (first or 0) - (last or 0)
        even = _even(rest, middle) if middle else []
        whole = ([first] if first is not None else []) + even + ([last] if last is not None else [])
        return [[_share(n, virtual, v) for n in whole] for v in range(virtual)]
    embedding = bool(job.option("account_for_embedding_in_pipeline_split"))
    loss = bool(job.option("account_for_loss_in_pipeline_split"))
    flat = _even(num_layers + embedding + loss, ways * virtual)
    flat[0] -= embedding
    flat[-1] -= loss
    return [flat[v * ways : (v + 1) * ways] for v in range(virtual)]


def _even(n: int, ways: int) -> list[int]:
    base, extra = divmod(n, ways)
    return [base + (1 if i < extra else 0) for i in range(ways)]


def _share(n: int, ways: int, index: int) -> int:
    return _even(n, ways)[index]


def _from_layout(layout: object, ways: int, job: _Split) -> list[list[Chunk]]:
    parts = stages_of_layout(layout)
    if not parts or len(parts) % ways:
        raise UnsupportedError(
            f"pipeline_model_parallel_layout has {len(parts)} stages, which {ways} pipeline ranks do not divide",
            f"separate a multiple of {ways} stages with |",
            "/training/options/pipeline_model_parallel_layout",
        )
    found: list[list[Chunk]] = [[] for _ in range(ways)]
    start = 0
    for i, part in enumerate(parts):
        end = start + part.count("t")
        found[i % ways].append(
            Chunk(layers=tuple(range(start, end)), embedding="E" in part, head="L" in part, mtp=part.count("m"))
        )
        start = end
    return found
