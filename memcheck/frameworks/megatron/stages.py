"""Which layers a pipeline rank holds, chunk by chunk.

Sources: Megatron-core ``transformer/transformer_block.py`` (get_num_layers_to_build), ``transformer_layer.py``
(get_transformer_layer_offset), ``pipeline_parallel_layer_layout.py``.

Megatron's text for what each pipeline stage holds.

Source: Megatron-core ``transformer/pipeline_parallel_layer_layout.py`` (parse_str_to_list).

Megatron's process groups as NCCL sees them, and the buffers of DeepEP.

Source: Megatron-core ``parallel_state.py`` (initialize_model_parallel). What each call of ``create_group`` makes is, as
far as a step uses it, a communicator of its own, also where it has the ranks of another one:

- the default group: barriers, so that one algorithm of a small sum is all it connects;
- ``tp``, ``cp``, ``dp_cp``, ``pp``: activations, gradients, stages;
- ``ep``: all-to-all of tokens under the ``alltoall`` dispatcher; ``ep_tp``: their counts, or the tokens themselves
  under ``allgather`` (the default), where no pair of ranks is connected (``transformer/moe/token_dispatcher.py``);
- ``mp``, the ranks of one copy of the model: whether a step succeeded, and the largest gradient norm
  (``training/training.py``, train_step; ``training/utils``, logical_and_across_model_parallel_group);
- all ranks of a distributed optimizer instance: the sum of the gradients' squares (``optimizer/__init__.py``,
  grad_stats_parallel_group; without the distributed optimizer that is ``mp``);
- ``embd``: the gradients of tied embeddings on the first and the last stage.

Under the ``flex`` dispatcher tokens travel through DeepEP's buffers.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.process_groups import OutsideTerm, ProcessGroup, deepep_bytes, spread
from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Moe
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re


_GROUP = r"\(([^()]*)\)\*(\d+)"
_REPEAT = r"([EtmL|])\*(\d+)"
MAX_LETTERS = 50_000
"""Letters of a layout with its repetitions written out: of the 10,000 layers that a model may have, and their stages.
"""
_WORDS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of a layout's text for the words of its list form."""


def stages_of_layout(layout: object) -> list[str]:
    """Return the letters of each pipeline stage of ``pipeline_model_parallel_layout``, over all ranks and chunks.

    Letters: E embedding, t layer, m prediction layer (MTP), L loss. ``layout``: a text such as ``Et*3|(tt|)*29m|L``, in
    which | ends a stage, or a list of words for each stage. Empty: it is neither.

    Raises:
        UnsupportedError: repetitions make it longer than any model is deep.
    """
    if isinstance(layout, str):
        return list(_stages(layout))
    if isinstance(layout, (list, tuple)):
        stage_words = [stage if isinstance(stage, (list, tuple)) else [stage] for stage in layout]
        return ["".join(_WORDS.get(str(word), str(word)) for word in stage) for stage in stage_words]
    return []


@lru_cache(maxsize=64)
def _stages(text: str) -> tuple[str, ...]:
    """Write all repetitions of a layout's text out, and split it into its stages."""
    text = text.replace(",", "").replace(" ", "")
    while True:
        expanded = _repeated(_REPEAT, _repeated(_GROUP, text))
        if expanded == text:
            return tuple(text.split("|"))
        text = expanded


def _repeated(pattern: str, text: str) -> str:
    """Return the text with each match of ``pattern``, (letters)*(times), written out.

    Raises:
        UnsupportedError: the text gets more than :data:`MAX_LETTERS` letters.
    """
    import re

    length = len(text)

    def written(match: re.Match[str]) -> str:
        """Return the letters of one match as often as it says."""
        nonlocal length
        times = match[2].lstrip("0")
        if len(times) <= len(str(MAX_LETTERS)):
            length += len(match[1]) * int(times or 0)
            if length <= MAX_LETTERS:
                return match[1] * int(times or 0)
        raise UnsupportedError(
            f"pipeline_model_parallel_layout repeats {match[1][:20]!r} until it has more than {MAX_LETTERS:,} letters",
            "write one `t` for each layer, and one `|` after each stage",
            "/training/options/pipeline_model_parallel_layout",
        )

    return re.sub(pattern, written, text)


MAX_PREDICTIONS = 128
"""Multi-token-prediction layers; each has a head of its own that is walked."""

MAX_CHUNKS = 256
"""Model chunks of a rank; what is live at the same time as each of them is walked."""


class Chunk(Record):
    """One model chunk of a rank: a run of layers, with the embedding or the head at its ends."""

    layers: tuple[int, ...]
    """The numbers of its layers in the model."""
    has_embedding: bool
    """The chunk begins with the embedding."""
    has_head: bool
    """The chunk ends with the final norm and the output layer."""
    mtp_layers: int = 0
    """Multi-token-prediction layers."""


def stages(num_layers: int, job: TrainingJob) -> tuple[tuple[Chunk, ...], ...]:
    """Return the model chunks of every pipeline rank: which layers, and which ends of the model, each one has.

    Raises:
        UnsupportedError: there are too many prediction layers or chunks, or a written layout does not fit the ranks.
    """
    layout = job.layout
    code = code_of(job.framework.style)
    if layout.pipeline > 1 and code.cut_chunks is not None:
        return code.cut_chunks(job)
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
                    has_embedding=virtual_stage == 0 and rank == 0,
                    has_head=last,
                    mtp_layers=mtp if last else 0,
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
        stated_first = [] if first_stage is None else [first_stage]
        stated_last = [] if last_stage is None else [last_stage]
        middle_ranks = ranks - len(stated_first) - len(stated_last)
        middle_layers = num_layers - sum(stated_first) - sum(stated_last)
        even = _divide_evenly(middle_layers, middle_ranks) if middle_ranks else []
        layers_of_rank = [*stated_first, *even, *stated_last]
        return [[_even_share(layers, virtual, stage) for layers in layers_of_rank] for stage in range(virtual)]
    # The embedding and the loss may each count as a layer, which their stage then lacks.
    embedding_layers = 1 if job.option("account_for_embedding_in_pipeline_split") else 0
    loss_layers = 1 if job.option("account_for_loss_in_pipeline_split") else 0
    layers_of_stage = _divide_evenly(num_layers + embedding_layers + loss_layers, ranks * virtual)
    layers_of_stage[0] -= embedding_layers
    layers_of_stage[-1] -= loss_layers
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
                layers=tuple(range(start, end)),
                has_embedding="E" in letters,
                has_head="L" in letters,
                mtp_layers=letters.count("m"),
            )
        )
        start = end
    return chunks_of_rank


class Use(Record):
    """The features of a job that decide which process groups it uses."""

    dispatcher: str
    """``allgather`` | ``alltoall`` | ``flex``."""
    shards_optimizer: bool
    """The optimizer's states are divided."""
    optimizer_instances: int
    """``num_distributed_optimizer_instances``: copies of the sharded optimizer states."""
    ties_embeddings: bool
    """Embedding and output layer share one matrix."""
    sends_ring: bool
    """Context parallelism passes keys and values to a neighbour."""
    deepep_token_width: int
    """Hidden size of the tokens in DeepEP's buffers; 0 where it is not used."""
    has_experts: bool = True
    """The model has experts."""

    def groups(self, layout: Layout) -> tuple[ProcessGroup, ...]:
        """Every communicator of one rank, as far as a step uses it."""
        return megatron_groups(layout, self)

    def buffers(self, layout: Layout) -> tuple[OutsideTerm, ...]:
        """Return DeepEP's buffers, in place of NCCL's connections between expert ranks."""
        ranks = layout.expert * layout.expert_tensor
        if not self.deepep_token_width or ranks == 1:
            return ()
        source = f"buffers for {ranks} ranks (deepseek-ai/DeepEP csrc/config.hpp, deep_ep/buffer.py)"
        return (OutsideTerm("DeepEP", deepep_bytes(ranks, self.deepep_token_width), source),)


def exchanges(job: TrainingJob) -> Use:
    """Read from the job's options and model what decides which communicators a rank has."""
    stated_distributed = job.option("use_distributed_optimizer")
    dispatcher = str(job.option("moe_token_dispatcher_type", "allgather"))
    deepep = dispatcher == "flex" and job.option("moe_flex_dispatcher_backend", "deepep") == "deepep"
    model = job.architecture
    return Use(
        dispatcher=dispatcher,
        shards_optimizer=job.layout.zero_stage >= 1 if stated_distributed is None else bool(stated_distributed),
        optimizer_instances=int(str(job.option("num_distributed_optimizer_instances") or 1)),
        ties_embeddings=isinstance(model, Architecture) and model.tie_word_embeddings,
        sends_ring=job.option("cp_comm_type", "p2p") == "p2p",
        deepep_token_width=model.hidden_size if deepep else 0,
        has_experts=isinstance(model, Architecture) and any(isinstance(block.mlp, Moe) for block, _ in model.blocks),
    )


def megatron_groups(layout: Layout, use: Use) -> tuple[ProcessGroup, ...]:
    """Return every communicator of one rank that a step uses: world, tensor, context, data, pipeline, experts.

    ``use``: the job's settings that decide which groups exist.
    """
    if layout.world_size == 1:
        return ()
    world = ProcessGroup(
        "world",
        min(layout.world_size, layout.gpus_per_node),
        layout.nodes,
        uses_collectives=True,
        connects_one_algorithm=True,
    )
    tensor = spread("tensor", layout.tensor, 1, layout)
    context = spread("context", layout.context, layout.tensor, layout)
    if context is not None and use.sends_ring:
        context = context._replace(peers=min(2, layout.context - 1))
    data = spread("data", layout.data * layout.context, layout.tensor, layout)
    groups = [world, *(group for group in (tensor, context, data) if group is not None)]
    if layout.pipeline > 1:
        ranks_per_stage = layout.world_size // layout.pipeline
        stages_per_node = min(max(1, layout.gpus_per_node // ranks_per_stage), layout.pipeline)
        nodes = ceil_div(layout.pipeline, stages_per_node)
        groups.append(
            ProcessGroup(
                kind="pipeline",
                ranks_in_node=stages_per_node,
                nodes=nodes,
                uses_collectives=False,
                peers=min(2, layout.pipeline - 1),
            )
        )
        if use.ties_embeddings:
            local_ends = min(stages_per_node, 2)  # the first and the last stage, on one node or on two
            groups.append(ProcessGroup("embedding", local_ends, 2 // local_ends, uses_collectives=True))
    groups += _sums(layout, use)
    return (*groups, *_experts(layout, use))


def _sums(layout: Layout, use: Use) -> list[ProcessGroup]:
    """Return the communicators that add up single numbers: over one copy of the model, and over an optimizer's
    instance.

    The first one agrees whether a step succeeded. The second sums the squares of the gradients' norm.
    """
    groups = []
    ranks = layout.tensor * layout.pipeline
    if ranks > 1:
        ranks_per_node = min(ranks, layout.gpus_per_node if layout.data * layout.context == 1 else layout.tensor)
        groups.append(
            ProcessGroup(
                "model",
                ranks_per_node,
                ceil_div(ranks, ranks_per_node),
                uses_collectives=True,
                connects_one_algorithm=True,
            )
        )
    ranks = layout.world_size // use.optimizer_instances
    if use.shards_optimizer and ranks > 1:
        ranks_per_node = min(ranks, layout.gpus_per_node)
        groups.append(
            ProcessGroup(
                "gradient norm",
                ranks_per_node,
                ceil_div(ranks, ranks_per_node),
                uses_collectives=True,
                connects_one_algorithm=True,
            )
        )
    return groups


def _experts(layout: Layout, use: Use) -> list[ProcessGroup]:
    """Return the communicators of routed experts; none without experts or with all of them on each rank.

    They are expert, expert-tensor and expert-data parallel groups, and the joint group that gathers tokens.
    """
    groups: list[ProcessGroup] = []
    ranks = layout.expert * layout.expert_tensor
    if ranks == 1 or not use.has_experts:
        return groups
    expert_group = spread("expert", layout.expert, layout.expert_tensor, layout)
    expert_tensor_group = spread("expert tensor", layout.expert_tensor, 1, layout)
    token_group = spread("expert tokens", ranks, 1, layout)
    if use.dispatcher == "alltoall":
        if expert_group is not None:
            groups.append(expert_group._replace(uses_collectives=False, peers=layout.expert - 1))
        if expert_tensor_group is not None:
            groups.append(expert_tensor_group)
    if token_group is not None:
        groups.append(
            token_group._replace(connects_one_algorithm=True)
        )  # all-gather and reduce-scatter connect ring neighbours alone
    replicas = layout.data * layout.context * layout.tensor // ranks
    expert_data_group = spread("expert data", replicas, ranks, layout)
    if expert_data_group is not None:
        groups.append(expert_data_group)
    return groups
