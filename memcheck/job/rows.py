"""How many rows a micro-batch has, how they lie, and whether attention is given a mask of each."""

from __future__ import annotations

from memcheck.job.defaults import Defaults, JobProblem, ResolutionError
from memcheck.job.framework import Framework
from memcheck.job.types import UNPACKED, Layout
from memcheck.models.types import Architecture, Attention, Rough
from memcheck.plan import types as plan_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.types import TrainingJob
    from memcheck.models.encoder import Encoder


PLACE = "/training/target_length"


def encoder_length(job: TrainingJob, encoder: Encoder) -> int:
    """Return the rows that the encoder reads per sample."""
    return encoder.length or job.sequence_length


def target_length(job: TrainingJob, encoder: Encoder) -> int:
    """Return the tokens that the decoder reads per sample."""
    return job.target_length or encoder.targets or job.sequence_length


def lengths(job: TrainingJob, encoder: Encoder) -> tuple[int, int]:
    """Return the rows of the encoder and the tokens of the decoder per sample."""
    return encoder_length(job, encoder), target_length(job, encoder)


def resolve_target(training: plan_types.TrainingSpec, architecture: Architecture | Rough, defaults: Defaults) -> int:
    """Return the tokens of the decoder's labels (``training.target_length``); 0 if the plan does not state them.

    Raises:
        ResolutionError: the model has an encoder but no decoder of its own, or too few positions.
    """
    stated = training.target_length
    encoder = architecture.encoder if isinstance(architecture, Architecture) else None
    if not isinstance(architecture, Architecture) or encoder is None:
        if stated is not None:
            message = "target_length is the length of an encoder-decoder's labels, and this model has no encoder"
            help = "remove it: sequence_length counts every token that the model reads"
            raise ResolutionError((JobProblem("target", PLACE, message, help=help),))
        return 0
    if stated is None:
        if encoder.targets:
            why = "not stated: the most that the decoder has positions for"
            defaults.note("training.target_length", encoder.targets, why)
        else:
            defaults.note("training.target_length", "sequence_length", "not stated: labels as long as the input")
        return 0
    if 0 < architecture.max_position_embeddings < stated:
        positions = architecture.max_position_embeddings
        message = f"the decoder has {positions:,} learned positions, and target_length is {stated:,}"
        raise ResolutionError((JobProblem("target", PLACE, message, help=f"write {positions:,} at most"),))
    return stated


def check_length(architecture: Architecture | Rough, sequence_length: int) -> None:
    """Check that the encoder reads as many rows as ``sequence_length`` states.

    Raises:
        ResolutionError: the two numbers differ.
    """
    encoder = architecture.encoder if isinstance(architecture, Architecture) else None
    if encoder is None or encoder.length in (0, sequence_length):
        return
    message = f"the encoder reads {encoder.length:,} rows of every sample, and sequence_length is {sequence_length:,}"
    help = f"write sequence_length: {encoder.length}; the labels' tokens are `target_length`"
    raise ResolutionError((JobProblem("target", "/training/sequence_length", message, help=help),))


GROWS = (
    "rows have many lengths, and what nvidia-smi shows grows over the steps; expandable segments, packed rows or the "
    "longest rows first keep it down"
)
"""What the allocator's default does over many steps of rows that are not packed."""
LAID = {"unpacked": "packed", "unpacked-masked": "masked"}
"""Rows of one text each that are estimated like full ones: without padding."""
MASKED = ("sdpa", "eager")
"""Attentions that are given a mask, whose memory model is known."""
AS_FULL = "rows are taken as full; `padded` if a collator pads them to the longest of a micro-batch"
"""Why rows of texts are packed where the plan does not say how they lie."""


def resolve_rows(
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    framework: Framework,
    attention: str,
    layout: Layout,
    defaults: Defaults,
) -> tuple[str, bool]:
    """Return ``training.sequences``, and whether rows that are estimated as full may be padded.

    The second is true for rows that a task head scores or an encoder reads, if the plan does not state ``sequences``.
    """
    sequences, may_be_padded = _sequences(training, architecture, framework, attention, layout, defaults)
    stated = training.expandable_segments
    expandable = framework.expandable if stated is None else stated
    if not expandable and (sequences == "padded" or training.sequences in LAID):
        defaults.note("training.expandable_segments", False, GROWS)
    return sequences, may_be_padded


def _sequences(
    training: plan_types.TrainingSpec,
    architecture: Architecture | Rough,
    framework: Framework,
    attention: str,
    layout: Layout,
    defaults: Defaults,
) -> tuple[str, bool]:
    """Return whether rows are ``packed``, ``masked`` or ``padded``, and whether rows assumed to be full may be padded.

    ``attention``: the implementation, which decides whether padding has a memory model. Assumptions are noted.
    """
    stated = training.sequences
    if stated is not None or not isinstance(architecture, Architecture):
        laid = LAID.get(stated or "packed", stated or "packed")
        what = unmodelled(laid, architecture, framework, attention, layout.context) if laid == "padded" else ""
        if what and framework.runs_transformers:
            defaults.note("training.sequences", "packed", f"padded rows under {what} are estimated as full ones")
            return "packed", False
        return laid, False
    if architecture.task is None and not encodes(architecture) and training.longest_row is None:
        return "packed", False
    if training.longest_row is not None:
        return unpacked_rows(architecture, framework, attention, layout.context, defaults), False
    return rows_of_texts(architecture, framework, attention, layout.context, defaults)


def encodes(a: Architecture) -> bool:
    """Return whether the model reads text in both directions: an encoder, alone or before a decoder."""
    if a.encoder is not None:
        return not a.encoder.channels
    return any(isinstance(block.mixer, Attention) and block.mixer.bidirectional for block, _ in a.blocks)


def unmodelled(
    rows: str, architecture: Architecture | Rough | None, framework: Framework, attention: str, context: int
) -> str:
    """Return what has no memory model for padded or masked rows; empty if all of it has one.

    ``context``: the degree of context parallelism.
    """
    if not framework.runs_transformers:
        return framework.title
    unpads = attention == "flash" and rows == "padded"
    if attention not in MASKED and not unpads:
        return f"attention `{attention}`"
    from memcheck.models.variants import maskable, unpaddable

    if not isinstance(architecture, Architecture) or not maskable(architecture):
        return "this model's attention"
    if unpads and not unpaddable(architecture):
        return f"attention `{attention}`"
    return "context parallelism" if context > 1 else ""


def rows_of_texts(
    architecture: Architecture, framework: Framework, attention: str, context: int, defaults: Defaults
) -> tuple[str, bool]:
    """Return ``padded`` or ``packed`` for encoders and scored rows in a plan that does not say, and whether they may
    pad.

    Such texts have many lengths. transformers' collators pad them to the longest of a micro-batch and make a mask
    (``data/data_collator.py``, DataCollatorForSeq2Seq and DataCollatorWithPadding, the Trainer's default; trl
    ``trainer/reward_trainer.py``, DataCollatorForPreference; sentence-transformers' tokenizers). Rows of an encoder are
    assumed to be padded if the trainer has such a collator. Other rows are assumed to be full, and a second estimate
    says what they need if they are padded. ``context``: context-parallel degree.
    """
    key = "training.sequences"
    what = unmodelled("padded", architecture, framework, attention, context)
    if what:
        return defaults.take(key, None, "packed", f"padded rows under {what} are estimated as full ones"), False
    if framework.trainers and encodes(architecture):
        why = "what encoders read: rows of many lengths; `packed` if every row is full"
        return defaults.take(key, None, "padded", why), False
    return defaults.take(key, None, "packed", AS_FULL), True


def unpacked_rows(
    architecture: Architecture, framework: Framework, attention: str, context: int, defaults: Defaults
) -> str:
    """Return ``padded`` for a plan that states its longest row, or ``packed`` if padding has no memory model here.

    ``context``: context-parallel degree. The assumption is noted in ``defaults``.
    """
    what = unmodelled("padded", architecture, framework, attention, context)
    why = f"padded rows under {what} are estimated as full ones" if what else "longest_row is stated"
    return defaults.take("training.sequences", None, "packed" if what else "padded", why)


LONGEST = "training.longest_row"


def check_longest(training: plan_types.TrainingSpec, limit: int) -> int:
    """Return the longest row that a plan states, if rows of at most ``limit`` tokens can have it.

    Raises:
        ResolutionError: it is longer, or the plan says that every row is full.
    """
    longest, laid = training.longest_row or limit, training.sequences
    key = "/training/longest_row"
    if laid is not None and laid not in UNPACKED:
        message = f"`longest_row` is of rows that are not packed, and `sequences: {laid}` are full"
        problem = JobProblem("rows", key, message, help="leave it out: every row has `sequence_length` tokens")
        raise ResolutionError((problem,))
    if longest > limit:
        message = f"longest_row is {longest:,} tokens, and sequence_length, the limit of a row, is {limit:,}"
        problem = JobProblem("rows", key, message, help="raise sequence_length, or state a shorter longest row")
        raise ResolutionError((problem,))
    return longest
