"""From the names in a plan to one accelerator and to architectures, with every problem at its place.

Also which models a framework builds, the values that a plan does not state, and errors of plans without an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.names import AmbiguousNameError, ConfigFileError, Gpu, UnknownNameError, find_gpu
from memcheck.errors import MemcheckError
from memcheck.families.registry import architecture_of
from memcheck.job.types import Assumption
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from memcheck.models.types import Block


class JobProblem(Record):
    """One reason, with the key that is responsible."""

    kind: str
    """Which file rule reports it: ``model`` (MEM020) | ``gpu`` (MEM021) | ``architecture`` (MEM022) | ``config-key``
    (MEM023) | ``config`` (MEM024) | ``missing`` (MEM012) | ``conflict`` (MEM015) | ``images``, ``base``, ``lora``
    (MEM014)."""
    pointer: str
    message: str
    help: str = ""


class ResolutionError(MemcheckError):
    """The plan is well-formed, but names something that does not exist or misses what has no default.

    Everything that is merely wrong about a plan (a degree that does not divide, an unknown option) is left to the
    rules: resolution goes on with the nearest job that can be estimated.
    """

    exit_code = 1

    def __init__(self, problems: tuple[JobProblem, ...]) -> None:
        super().__init__("; ".join(p.message for p in problems), problems[0].help)
        self.problems = problems


if TYPE_CHECKING:
    T = TypeVar("T")

PLAN_DEFAULT = "default"


class Defaults:
    """The ledger of one resolution: returns stated values, or defaults, which it notes as assumptions."""

    def __init__(self) -> None:
        self._assumptions: list[Assumption] = []

    def stated_or(self, key: str, stated: T | None, default: T, why: str = PLAN_DEFAULT) -> T:
        """Return ``stated``, or ``default`` with a note under the dotted plan key that it was assumed."""
        if stated is not None:
            return stated
        self.note(key, default, why)
        return default

    def note(self, key: str, value: object, why: str) -> None:
        """Note a value that the plan does not state and that is used, under its dotted plan key."""
        self._assumptions.append(Assumption(key, value, why))

    def assumptions(self) -> tuple[Assumption, ...]:
        """Return all assumptions so far, in the order in which they were noted."""
        return tuple(self._assumptions)


GIB = 2**30
_RATES = ("bf16_tflops", "fp16_tflops", "fp8_tflops", "hbm_gbs", "nvlink_gbs")


def resolve_gpu(stated: plan_types.GpuSpec) -> Gpu:
    """Return the catalog's record of a GPU; numbers that the plan states replace the catalog's.

    A GPU that the catalog does not know is accepted if the plan states its memory.

    Raises:
        ResolutionError: the name is unknown, or that of several cards, and ``memory_gib`` is not given.
    """
    try:
        gpu: Gpu | None = named_card(stated)
    except UnknownNameError as error:
        if stated.memory_gib is None:
            help = _counted(stated.name) or error.help
            raise ResolutionError((JobProblem("gpu", "/hardware/gpu", error.message, help=help),)) from None
        gpu = None
    if gpu is None:
        gpu = Gpu(name=stated.name, memory_bytes=0, source="the plan")
    changed: dict[str, object] = {rate: getattr(stated, rate) for rate in _RATES if getattr(stated, rate) is not None}
    if stated.memory_gib is not None:
        changed["memory_bytes"] = round(stated.memory_gib * GIB)
    if changed:
        gpu = gpu._replace(from_catalog=False, source="the plan", **changed)  # type: ignore[arg-type]
    return gpu


def _counted(name: str) -> str:
    """Say what to write in place of ``8xH100`` or ``H100:8``; empty for a name without a number of GPUs."""
    import re

    count_first = re.fullmatch(r"(?P<count>[0-9]{1,4}) ?[x*] ?(?P<card>.+)", name)
    match = count_first or re.fullmatch(r"(?P<card>.+?) ?[x:*] ?(?P<count>[0-9]{1,4})", name)
    if match is None:
        return ""
    card, count = match["card"], match["count"]
    try:
        known = find_gpu(card).name
    except AmbiguousNameError as error:
        known = " or ".join(error.close)
    except UnknownNameError:
        return ""
    return f"write `gpu: {known}` and the number as `gpus_per_node: {count}`"


def named_card(stated: plan_types.GpuSpec) -> Gpu:
    """Return the catalog's card of that name; of several, the one whose memory is nearest to the stated memory.

    Raises:
        UnknownNameError: there is none, or there are several and no memory is stated.
    """
    try:
        return find_gpu(stated.name)
    except AmbiguousNameError as error:
        if stated.memory_gib is None:
            raise
        wanted = stated.memory_gib * GIB
        return min((find_gpu(name) for name in error.close), key=lambda card: abs(card.memory_bytes - wanted))


def resolve_model(model: plan_types.ModelSpec, *, base_dir: str) -> Architecture | Rough:
    """Return the architecture that the plan names; ``base_dir`` is where relative config paths start.

    Raises:
        ResolutionError: unknown name, unreadable config.json, or a configuration that no family reads.
    """
    if model == plan_types.ModelSpec(overrides=model.overrides):
        raise ResolutionError(
            (JobProblem("missing", "/model", "the plan names no model", help="write `model: llama-3.1-8b`"),)
        )
    try:
        return architecture_of(model, base_dir)
    except UnknownNameError as error:
        raise ResolutionError((JobProblem("model", _name_pointer(model), error.message, help=error.help),)) from None
    except ConfigFileError as error:
        raise ResolutionError((JobProblem("config", "/model/config", error.message, help=error.help),)) from None
    except ArchitectureError as error:
        pointer = _key_pointer(error.key, model)
        kind = "architecture" if error.key in {"", "model_type"} else "config-key"
        raise ResolutionError((JobProblem(kind, pointer, error.message, help=error.help),)) from None


def _name_pointer(model: plan_types.ModelSpec) -> str:
    return "/model" if model.overrides is None else "/model/name"


def _key_pointer(key: str, model: plan_types.ModelSpec) -> str:
    """Return the JSON pointer to a configuration key in the plan, or to what brought the configuration."""
    head = key.split(".", maxsplit=1)[0]
    if model.overrides and head in model.overrides:
        return "/model/overrides/" + key.replace(".", "/")
    if model.architecture is not None:
        where = "/model/architecture"
        return where + "/" + key.replace(".", "/") if head in model.architecture else where
    return "/model/config" if model.config is not None else _name_pointer(model)


PLACE = "/training/teacher"


def resolve_teacher(stated: plan_types.TeacherSpec, base_dir: str) -> Architecture | Rough:
    """Return the architecture of the teacher of a distillation.

    Raises:
        ResolutionError: like :func:`resolve_model`, with pointers under ``/training/teacher``.
    """
    try:
        return resolve_model(stated.model, base_dir=base_dir)
    except ResolutionError as error:
        problems = tuple(problem._replace(pointer=PLACE + problem.pointer) for problem in error.problems)
        raise ResolutionError(problems) from None


class Families(Record):
    """What a framework builds that has a memory model here. Anything else is refused, never estimated as something
    near.

    A family is a ``model_type`` of Hugging Face. ``parts`` are fields of the records of
    :mod:`memcheck.models.types`, as ``Attention.window``: those that the framework's forward pass reads.
    """

    names: tuple[str, ...]
    parts: frozenset[str] | None = None
    """Parts of layers that the framework builds; None: transformers' own code runs, and builds every part."""
    harmless: frozenset[str] = frozenset()
    """Parts that the framework does not have, or that take the same memory there; a comment at each entry says why."""
    own: frozenset[str] = frozenset()
    """Values of ``model_type`` that no other framework builds."""
    source: str = ""
    """Where upstream lists the framework's models."""


def words(text: str) -> tuple[str, ...]:
    """Names between blanks."""
    return tuple(text.split())


def parts(**fields: str) -> frozenset[str]:
    """``Attention="heads window"`` as ``{"Attention.heads", "Attention.window"}``."""
    return frozenset(f"{record}.{field}" for record, words in fields.items() for field in words.split())


LATENT = "heads q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim bias tensors"
EXPERTS = "experts experts_per_token width gated activation router shared tensors"
NORM = "kind size weight bias"

FORMS = parts(
    Attention="fused_qkv rotation kernels eager extension",
    Rotation="form interleaved named",
    FusedKernels="sdpa flash explicit_mask",
    EagerScores="scores_fp32 softmax_fp32 returned",
    LatentAttention="rotary_interleaved",
    Mlp="fused_gate_up inline adaptable",
    Moe="routing adaptable",
    Routing="input_fp32 scores_fp32 normalised groups",
    Block="dropout_place lives_to_forward_end",
    LayerVariables="input_norm_output mixer_output mlp_input",
    PositionTable="positions",
    Norm="name",
) | {
    "BertMlp", "BloomAttention", "ComplexLatentAttention", "ExpandedFalconAttention", "FalconAttention",
    "Gpt2Attention", "MptAttention", "NormsFirstBlock",
}  # fmt: skip
"""How transformers writes a layer, which other code writes its own way. What a router with groups or a correction adds
to its scores is of [tokens, experts] and gone before the experts run. Fields of the record in ``Attention.extension``
are parts, too. A variant's name stands for what sets it apart."""

OUTSIDE = words(
    "embedding_norm learned_positions head_bias final_softcap embedding_scale embedding_dropout extra_tensors "
    "logit_scale"
)
"""Fields of ``Architecture`` that add something to the embedding or the head."""

PARTIAL_ROTARY = "Attention.rotary_dim of a part of each head"


def stated(block: Block) -> Iterator[str]:
    """Yield the parts of a block that it states, such as ``Attention.window``: fields that differ from their default.

    A framework builds the block if :class:`Families` lists every one of these names in ``parts`` or ``harmless``.
    """
    yield from _stated(block)
    rotary = getattr(block.mixer, "rotary_dim", 0)
    if rotary and rotary != getattr(block.mixer, "head_dim", rotary):
        yield PARTIAL_ROTARY


def _stated(record: Any) -> Iterator[str]:
    """Yield ``Record.field`` for each field of a record, and of records inside it, that differs from its default.

    The names are those that :class:`Families` lists. A field is named by the class that declares it, such as
    ``Attention.window`` for a subclass of ``Attention``; the subclass's name is yielded before. A field without a
    default is left out if its value is false in Python: 0, False, None, or an empty text or tuple.
    """
    record_type, defaults = type(record), record._field_defaults
    declaring_class = next(base.__name__ for base in record_type.__mro__ if "_fields" in vars(base))
    if record_type.__name__ != declaring_class:
        yield record_type.__name__
    for field, value in zip(record._fields, record, strict=True):
        differs = value != defaults[field] if field in defaults else bool(value)
        if differs:
            yield f"{declaring_class}.{field}"
        if isinstance(value, tuple) and hasattr(value, "_field_defaults"):
            yield from _stated(value)
