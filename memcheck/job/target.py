"""How many rows an encoder reads of a sample, and how many tokens its decoder is given."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.errors import JobProblem, ResolutionError
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.types import TrainingJob
    from memcheck.models.encoder import Encoder

PLACE = "/training/target_length"


def encoder_length(job: TrainingJob, encoder: Encoder) -> int:
    """Rows of the encoder, of each sample."""
    return encoder.length or job.sequence_length


def target_length(job: TrainingJob, encoder: Encoder) -> int:
    """Tokens of the decoder, of each sample."""
    return job.target_length or encoder.targets or job.sequence_length


def lengths(job: TrainingJob, encoder: Encoder) -> tuple[int, int]:
    """Rows of the encoder and tokens of the decoder, of each sample."""
    return encoder_length(job, encoder), target_length(job, encoder)


def resolve_target(training: plan_types.TrainingSpec, architecture: Architecture | Rough, defaults: Defaults) -> int:
    """``training.target_length``; 0 where the plan does not state it.

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
        most = architecture.max_position_embeddings
        message = f"the decoder has {most:,} learned positions, and target_length is {stated:,}"
        raise ResolutionError((JobProblem("target", PLACE, message, help=f"write {most:,} at most"),))
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
