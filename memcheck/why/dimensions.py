"""The sizes of a model on one rank, of which its tensors' shapes are made: of a catalog's model, or of a plan's job."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from memcheck.accounts.state import block_component_tensors, local_tensor
from memcheck.frameworks.deepspeed.engine import elements
from memcheck.frameworks.megatron.tensors import padded_vocabulary
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.models.parameters import count_parameters, outer_tensors, tower_runs
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mlp, Moe, ParameterTensor
from memcheck.record import Record

HIDDEN, MLP, QKV = "hidden", "mlp", "qkv"
"""Groups of tensors with a row per token: as wide as the model, of feed-forward networks, and of attention."""
STORED = {"int8": "int8", "fp8": "fp8", "nf4": "nf4", "fp4": "nf4", "int4": "nf4"}
"""How quantised weights are held, by the plan's word."""
DEGREES = (2, 4, 8)
"""Degrees of tensor parallelism that are tried where it is not stated."""


class Dimensions(Record):
    """What is known of the sizes of a model on one rank, and of one pass. 0: not known."""

    vocabulary: tuple[int, ...] = ()
    """Columns of the logits: the whole vocabulary, and a tensor-parallel rank's part."""
    heads: tuple[int, ...] = ()
    widths: tuple[tuple[str, str, int], ...] = ()
    """Group, name and columns of tensors with a row per token."""
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of parameters."""
    shards: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Shapes on one of several tensor-parallel ranks, where the degree is not known."""
    units: tuple[tuple[str, int], ...] = ()
    """Names and elements of what is gathered or kept flat: a layer, the whole model, a rank's share of it."""
    caches: tuple[tuple[str, int], ...] = ()
    """Names and elements per token of keys and values."""
    sequences: int = 0
    length: int = 0
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    """Types of activations; weights have one of them, too."""
    stored: tuple[str, ...] = ()
    """Further dtypes of weights: ``int8`` | ``fp8`` | ``nf4``."""


def dimensions_of(architecture: Architecture, job: TrainingJob | InferenceJob | None = None) -> Dimensions:
    """What the model's tensors and the job's layout say of sizes. Without a job nothing is divided."""
    layout = None if job is None else job.layout
    t, e, et = (1, 1, 1) if layout is None else (layout.tensor, layout.expert, layout.expert_tensor)
    a = architecture
    weights: dict[tuple[str, tuple[int, ...]], None] = {}
    shards: dict[tuple[str, tuple[int, ...]], None] = {}
    widths: dict[tuple[str, str, int], None] = {(HIDDEN, "hidden states", a.hidden_size): None}
    heads: set[int] = set()
    caches: dict[tuple[str, int], None] = {}
    units: dict[int, str] = {}
    total = 0
    for block, times in a.blocks:
        elements = 0
        for tensor, component in block_component_tensors(block):
            shape = local_tensor(tensor, component, t, e, et)
            weights[tensor.name, shape] = None
            elements += prod(shape)
            if len(shape) == 3:  # stacked experts, which checkpoints hold one by one
                weights[f"one expert's {tensor.name}", shape[1:]] = None
            if job is None and tensor.shard != "none":
                shards |= dict.fromkeys(_shards(tensor, component))
            if tensor.linear and len(shape) == 2:
                group = MLP if isinstance(component, Mlp | Moe) else QKV
                outputs, name = shape[1] if tensor.transposed else shape[0], tensor.name.removesuffix(".weight")
                widths[group, f"output of {name}", outputs] = None
        total += times * elements
        units.setdefault(elements, "one layer, gathered or flat")
        if isinstance(block.mlp, Mlp):
            widths[MLP, "MLP activation", -(-block.mlp.width // t)] = None
            if block.mlp.gated:
                widths[MLP, "gate and up of the MLP", 2 * -(-block.mlp.width // t)] = None
        elif isinstance(block.mlp, Moe):
            rows = block.mlp.experts_per_token
            widths[MLP, "experts' activation", rows * -(-block.mlp.width // et)] = None
            widths[MLP, "experts' gate and up", 2 * rows * -(-block.mlp.width // et)] = None
            widths[HIDDEN, "tokens copied to their experts", rows * a.hidden_size] = None
        if isinstance(block.mixer, Attention | LatentAttention):
            heads.add(-(-block.mixer.heads // t))
        if isinstance(block.mixer, Attention):
            own = -(-block.mixer.kv_heads // t) * block.mixer.head_dim
            caches["keys or values of one layer", own] = None
            caches["keys and values of one layer", 2 * own] = None
        weights |= dict.fromkeys(_merged(block, t))
    around, outer = _outside(a, t)
    weights |= dict.fromkeys(around)
    total = count_parameters(a) if t == e == et == 1 else total + outer
    units.setdefault(outer, "embedding, final norm and head, flat")
    units.setdefault(total, "the whole model, flat")
    columns = {a.vocab_size, -(-a.vocab_size // t)}
    found = Dimensions(
        vocabulary=tuple(sorted(columns)) if a.head else (),
        heads=tuple(sorted(heads)),
        widths=tuple(widths),
        weights=tuple(w for w in weights if len(w[1]) > 1),
        shards=tuple(w for w in shards if len(w[1]) > 1),
        units=tuple((name, elements) for elements, name in units.items() if elements),
        caches=tuple(caches),
    )
    return found if job is None else _of_job(found, job, total)


def _outside(a: Architecture, t: int) -> tuple[list[tuple[str, tuple[int, ...]]], int]:
    """Weights outside of the layers, those of towers included, and the elements of those that are no tower's."""
    found = [(tensor.name, local_tensor(tensor, a, t, 1, 1)) for tensor in outer_tensors(a)]
    outer = sum([prod(shape) for _, shape in found])
    return [*found, *((tensor.name, tensor.shape) for tensors, _, _ in tower_runs(a) for tensor in tensors)], outer


def _shards(tensor: ParameterTensor, component: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    for degree in DEGREES:
        yield f"1/{degree} of {tensor.name}", local_tensor(tensor, component, degree, 1, degree)


def _merged(block: Block, t: int) -> list[tuple[str, tuple[int, ...]]]:
    """Weights that serving engines hold as one: gate and up (vLLM ``MergedColumnParallelLinear``), and q, k and v."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for part, names in ((block.mlp, ("gate_proj", "up_proj")), (block.mixer, ("q_proj", "k_proj", "v_proj"))):
        own = () if part is None else part.tensors
        shapes = [tensor.shape for tensor in own if tensor.linear and tensor.name.split(".")[-2] in names]
        if len(shapes) == len(names):
            rows = sum([-(-shape[0] // t) for shape in shapes])
            found.append((f"merged {', '.join(names)} weight", (rows, shapes[0][-1])))
    return found


def _of_job(found: Dimensions, job: TrainingJob | InferenceJob, total: int) -> Dimensions:
    """Add what the job states of its pass, and the shares of flat states."""
    if isinstance(job, InferenceJob):
        dtypes = tuple(dict.fromkeys((job.weights if job.weights in ("fp32", "fp16") else "bf16", "fp32")))
        stored: tuple[str, ...] = (STORED[job.weights],) if job.weights in STORED else ()
        return found._replace(sequences=job.batch_size, length=job.context_length, dtypes=dtypes, stored=stored)
    layout = job.layout
    ways = max(1, layout.data * layout.context)
    stored = ()
    if job.has_four_bit_base:
        stored = ("nf4",)
    elif job.base_format is not None and job.base_format.name in STORED:
        stored = (STORED[job.base_format.name],)
    padded = _padded_vocabulary(found.vocabulary, job)
    units = list(found.units)
    if ways > 1:
        units += [(f"1/{ways} of {name}", -(-elements // ways)) for name, elements in found.units]
    hidden = next((columns for group, _, columns in found.widths if group == HIDDEN), 0)
    return found._replace(
        vocabulary=padded,
        units=(*units, *_buckets(job, hidden)),
        sequences=job.rows,
        length=-(-job.sequence_length // layout.context),
        dtypes=tuple(dict.fromkeys((job.recipe.compute, job.recipe.params, "fp32"))),
        stored=stored,
    )


def _padded_vocabulary(columns: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
    """Columns of the logits on a rank, those of a framework that pads the vocabulary first."""
    if not columns or not job.framework.parallelism.pads_vocabulary:
        return columns

    whole = padded_vocabulary(columns[-1], job)
    return tuple(dict.fromkeys((whole // job.layout.tensor, whole, *columns)))


def _buckets(job: TrainingJob, hidden: int) -> list[tuple[str, int]]:
    """Names and elements of the flat buffers that DeepSpeed reduces and gathers in."""
    if not job.framework.has_sharding_engine:
        return []

    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size")
    found = [(name, elements(job, name, hidden)) for name in names]
    return [(f"bucket: {name} of {count:,} elements", count) for name, count in found if count]
