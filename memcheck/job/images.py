"""Whether a model's output carries all that its vision tower has returned, which hangs on transformers' version.

From ``training.images`` to what a vision tower gets of one sample, and of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.errors import UnsupportedError
from memcheck.job.defaults import Defaults, JobProblem, ResolutionError
from memcheck.job.framework import Framework
from memcheck.job.types import Images, TrainingJob
from memcheck.job.versions import TRANSFORMERS, is_before
from memcheck.models.rough import Rough
from memcheck.models.vision import Vision
from memcheck.plan import types as plan_types
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from memcheck.models.types import Architecture


GIVES = (5, 24)
"""The first whose outputs have ``image_outputs`` (modeling_outputs.py, ``MultimodalCausalLMOutputWithPast``)."""


def has_outputs(vision: Vision, framework: Framework) -> bool:
    """Whether the class has such an output since then: transformers' own, but for those that have none of their own
    (Phi-4), whose language model has a head inside (C-RADIO), or that read pictures by cross attention.
    """
    return framework.style.modeling_files and not (vision.placement == "put" or vision.crosses or vision.to_loss)


def gives(version: str | None) -> bool:
    """Whether this version's output carries the tower's; None: the newest."""
    return not is_before(version, GIVES)


def note_version(
    training: plan_types.TrainingSpec,
    vision: Vision,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> None:
    """List what is assumed where a plan does not say which version it runs."""
    if not has_outputs(vision, framework):
        return
    named = framework.versions_models
    stated = training.framework_version if named else options.get(TRANSFORMERS)
    if stated is None and (named or TRANSFORMERS in framework.options):
        key = "training.framework_version" if named else f"training.options.{TRANSFORMERS}"
        defaults.note(key, "5.24 or newer", "the model's output keeps what the tower returned; older ones need less")


PLACE = "/training/images"
MOST_SIZES = 1024
"""Pictures of a micro-batch that eager attention is replayed over one by one."""


class Pictures(Record):
    """What the tower gets of one micro-batch."""

    pictures: int
    """Pictures or tiles."""
    rows: int
    """Rows of the tower, class tokens included."""
    tokens: int
    """Number of image tokens."""
    sizes: tuple[int, ...] = ()
    """Rows of each picture, in order, where they differ."""


NO_PICTURES = Pictures(0, 0, 0)
NONE = Images(0, 0, 0)
"""A sample of text alone."""
FILL = "fill"
"""``per_sample`` of a sample whose pictures take every place of its sequence: the most that its length can hold."""
UNSTATED = (
    "not stated: samples of text alone; state pictures by `training.images` or "
    "`--images 'per_sample: 1, width: 1280, height: 720'`"
)
"""Why a plan that does not mention pictures has none."""


def resolve_pictures(
    training: plan_types.TrainingSpec,
    a: Architecture | Rough,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> Images | None:
    """The pictures of a sample, of a model that has a tower, or where the plan asks for some."""
    vision = None if isinstance(a, Rough) else a.vision
    if vision is None and not isinstance(a, Rough) and any(o.part in ("vision", "audio") for o in a.others):
        return resolve_idle(training, a, defaults)
    if vision is None and training.images is None:
        return None
    stated = training.images
    if vision is not None and stated is not None and stated.per_sample != 0:
        note_version(training, vision, framework, options, defaults)
    return resolve_images(training, vision, defaults)


def pictures_of(job: TrainingJob, vision: Vision) -> Pictures:
    """The pictures of a micro-batch of the job."""
    found = job.images or filling(vision, job.sequence_length)
    each = job.rows
    if each * len(found.sizes) > MOST_SIZES and job.attention == "eager":
        message = f"{each * len(found.sizes):,} pictures of sizes of their own in a micro-batch are not replayed"
        help = f"list at most {MOST_SIZES:,}, or say the patches of all pictures together, which takes them to be alike"
        raise UnsupportedError(message, help, PLACE + "/patches")
    sizes = found.sizes if job.attention == "eager" else ()
    return Pictures(
        pictures=each * found.pictures, rows=each * found.patches, tokens=each * found.tokens, sizes=each * sizes
    )


def are_there(job: TrainingJob) -> bool:
    """Whether samples have pictures, where the model has a tower."""
    return job.images is None or job.images.patches > 0


def filling(vision: Vision, sequence: int) -> Images:
    """The largest number of pictures whose image tokens fit into a sequence of ``sequence`` tokens: the tower cannot
    get more rows.
    """
    if vision.crosses:
        return Images(1, vision.tile, 1)
    if vision.resampled:
        pictures = -(-sequence // vision.resampled)
        return Images(pictures, pictures * vision.side, min(sequence, pictures * vision.resampled))
    if vision.tile:
        tiles = -(-sequence // vision.tile_tokens)
        return Images(tiles, tiles * vision.tile, min(sequence, tiles * vision.tile_tokens))
    return Images(1, sequence * vision.merge, sequence)


def resolve_images(training: plan_types.TrainingSpec, vision: Vision | None, defaults: Defaults) -> Images | None:
    """What the processor makes of one sample's pictures. None: as many as fill the sequence.

    A plan that does not mention pictures has samples of text.

    Raises:
        ResolutionError: the model has no tower, or the pictures have more tokens than the sequence.
    """
    stated = training.images
    if vision is None:
        if stated is not None:
            _fail("a model without a vision tower gets no pictures", "remove `images`, or name a vision-language model")
        return None
    if stated is None:
        defaults.note("training.images", "none", UNSTATED)
        return NONE
    if stated.per_sample == FILL:
        _fills(stated, vision, defaults)
        return None
    if stated.patches is not None and stated.tokens is not None:
        found = _stated(training, vision, stated.patches, stated.tokens, defaults)
        return found if vision.crosses else _fitting(training, vision, found, defaults)
    per_sample = defaults.take("training.images.per_sample", _number(stated), 1)
    if per_sample == 0:
        found = NONE
    elif stated.width is not None and stated.height is not None:
        from memcheck.families.pictures import Limits, PictureError, tokens_of

        try:
            limits = Limits(stated.min_pixels, stated.max_pixels)
            one = tokens_of(vision, stated.height, stated.width, stated.frames, limits)
        except PictureError as error:
            _fail(error.message, error.help)
        if per_sample > 1 and one.of_several is not None:
            one = one._replace(pictures=one.of_several[0], patches=one.of_several[1], tokens=one.of_several[2])
        for key, value, why in one.defaults:
            defaults.note(f"training.images.{key}", value, why)
        found = Images(per_sample * one.pictures, per_sample * one.patches, per_sample * one.tokens)
        if len(set(one.sizes)) > 1:
            found = found._replace(sizes=per_sample * one.sizes)
    else:
        _fail(
            f"{per_sample} pictures a sample of unknown size",
            "write their width and height in pixels, or patches and tokens as the processor counts them",
        )
    return _fitting(training, vision, found, defaults)


def _number(images: plan_types.ImagesSpec) -> int | None:
    """The pictures of a sample that a plan counts; None where it does not."""
    return images.per_sample if isinstance(images.per_sample, int) else None


def _fills(stated: plan_types.ImagesSpec, vision: Vision, defaults: Defaults) -> None:
    """Check ``images: {per_sample: fill}``: the plan asks for the most pictures that a sequence can hold."""
    if stated != plan_types.ImagesSpec(per_sample=FILL):
        _fail("`per_sample: fill` takes pictures of any size", "write `images: {per_sample: fill}`, or count them")
    if vision.crosses:
        defaults.note("training.images", "one picture a sample", "sequence_length does not bound their number")
        return
    defaults.note("training.images", "sequence_length image tokens a sample", "the most that a sequence holds")


def _stated(
    training: plan_types.TrainingSpec, vision: Vision, rows: int | tuple[int, ...], tokens: int, defaults: Defaults
) -> Images:
    """The pictures of a plan that says their patches: of all together, or of each."""
    images = training.images or plan_types.ImagesSpec()
    sizes = () if isinstance(rows, int) else rows
    per_sample = len(sizes) or defaults.take("training.images.per_sample", _number(images), 1)
    if images.per_sample not in (None, per_sample):
        _fail(f"patches of {per_sample} pictures, and per_sample is {images.per_sample}", "remove per_sample")
    patches = rows if isinstance(rows, int) else sum(rows)
    if vision.crosses:
        return _padded(training, vision, per_sample, patches, tokens)
    found = _counted(vision, per_sample, patches, tokens)
    if len(set(sizes)) > 1 and not (vision.tile or vision.resampled or vision.budgets):
        return found._replace(sizes=sizes)
    if per_sample > 1 and not vision.tile and not sizes:
        each = -(-patches // per_sample)
        why = "pictures of a sample are taken to be alike: eager attention keeps more of unequal ones (list each)"
        defaults.note("training.images.patches", f"{each} a picture", why)
    return found


def resolve_idle(training: plan_types.TrainingSpec, a: Architecture, defaults: Defaults) -> Images:
    """The pictures for a tower that has no memory model with a graph: as many image tokens of each, or none at all.

    Raises:
        ResolutionError: the plan does not say that there are none, and a tower has no memory model of them.
    """
    stated = training.images
    if stated is None:
        defaults.note("training.images", "none", UNSTATED)
        return NONE
    if stated.per_sample == 0:
        return NONE
    each = max((e.tokens for e in a.embedders), default=0)
    if not each:
        _fail(
            "memcheck has no model of this model's tower as it runs, only of one that is resident",
            "where samples are text alone, without pictures and sounds, write `images: {per_sample: 0}`; for the "
            "language model by itself `model: {part: language}`",
        )
    if stated.per_sample == FILL:
        _fail("the plan does not say how many pictures a sample has", "write `images: {per_sample: 0}`, or how many")
    pictures = defaults.take("training.images.per_sample", _number(stated), 1)
    if stated.tokens is not None and stated.tokens != pictures * each:
        _fail(f"{stated.tokens:,} image tokens are not those of {pictures} pictures", f"a picture becomes {each}")
    patches = sum(stated.patches) if isinstance(stated.patches, tuple) else stated.patches
    found = Images(pictures, patches or pictures * each, pictures * each)
    if training.sequence_length is not None and found.tokens >= training.sequence_length:
        _fail(
            f"the pictures of a sample become {found.tokens:,} tokens, and sequence_length is "
            f"{training.sequence_length:,}",
            "sequence_length counts image tokens, too: raise it, or write fewer pictures",
        )
    return found


def _padded(training: plan_types.TrainingSpec, vision: Vision, per_sample: int, patches: int, tokens: int) -> Images:
    """Pictures that are all padded to as many tiles: how many rows of them are real changes nothing.

    Numbers that are too many for one sample may be those of all samples of the micro-batch.
    """
    most = per_sample * vision.tile
    if patches > most * (training.micro_batch_size or 1):
        _fail(
            f"{patches:,} patches of {per_sample} pictures are more than the processor leaves",
            f"a picture has {vision.tile:,} at most; `per_sample` says how many a sample has",
        )
    return Images(per_sample if patches else 0, most if patches else 0, tokens)


def _counted(vision: Vision, per_sample: int, patches: int, tokens: int) -> Images:
    if vision.resampled:  # a picture that is split counts as several
        return Images(max(per_sample, tokens // vision.resampled), patches, tokens)
    if vision.budgets:
        each = -(-patches // max(1, per_sample))
        rows = next((n * vision.merge for n in vision.budgets if n * vision.merge >= max(each, vision.tile)), 0)
        if not rows:
            _fail(
                f"{patches:,} patches of {per_sample} pictures are more than the processor leaves",
                f"a picture has {vision.budgets[-1] * vision.merge:,} at most",
            )
        return Images(per_sample, per_sample * rows, tokens)
    if vision.tile:
        if patches % vision.tile:
            _fail(
                f"{patches:,} patches are no multiple of the {vision.tile:,} of a tile",
                "count the rows of every tile, its class token included",
            )
        return Images(patches // vision.tile, patches, tokens)
    return Images(per_sample, patches, tokens)


def _fitting(training: plan_types.TrainingSpec, vision: Vision, found: Images, defaults: Defaults) -> Images:
    """The pictures, if the sequence holds their tokens and something to learn from.

    Numbers that are too many for one sample, and not for all samples of the micro-batch together, are those of all.
    """
    sequence, samples = training.longest_row or training.sequence_length, training.micro_batch_size or 1
    if sequence is None or vision.crosses or found.tokens + vision.separators * found.pictures < sequence:
        return found
    share = Images(-(-found.pictures // samples), -(-found.patches // samples), -(-found.tokens // samples))
    stated = training.images
    if samples > 1 and stated is not None and isinstance(stated.patches, int) and share.tokens < sequence:
        if isinstance(stated.per_sample, int) and not vision.tile:
            share = share._replace(pictures=stated.per_sample)
        why = f"{found.tokens:,} are more than a sequence of {sequence:,} holds: read as of all {samples} samples"
        defaults.note("training.images.tokens", share.tokens, why)
        return share
    if found.tokens < sequence:
        return found
    return _fail(
        f"the pictures of a sample become {found.tokens:,} tokens, and sequence_length is {sequence:,}",
        "sequence_length counts image tokens, too: raise it, or write fewer or smaller pictures",
    )


def _fail(message: str, help: str) -> NoReturn:
    raise ResolutionError((JobProblem("images", PLACE, message, help=help),))
