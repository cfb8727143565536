"""Whether a model's output carries all that its vision tower has returned, which hangs on transformers' version.

From ``training.images`` to what a vision tower gets of one sample, and of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.families.tower import Limits, PictureError, tokens_of
from memcheck.job.framework import Framework
from memcheck.job.lookup import Defaults, JobProblem, ResolutionError
from memcheck.job.types import Images, TrainingJob
from memcheck.job.versions import TRANSFORMERS, is_before
from memcheck.models.types import Rough
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
    """Say whether the class has such an output since then: transformers' own, but for those that have none of their own
    (Phi-4), whose language model has a head inside (C-RADIO), or that read pictures by cross attention.
    """
    return framework.style.runs_transformers_modules and not (
        vision.placement == "put" or vision.text_layers_that_read_images or vision.outputs_live_until_loss
    )


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
    """Note in ``defaults`` which version of transformers is assumed, if the plan states none.

    It decides whether the model's output keeps the vision tower's output alive.
    """
    if not has_outputs(vision, framework):
        return
    named = framework.version_is_transformers
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
    patches: int
    """Rows of the tower, class tokens included."""
    image_tokens: int
    """Number of image tokens."""
    patches_by_picture: tuple[int, ...] = ()
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
    architecture: Architecture | Rough,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> Images | None:
    """Return the images of one sample, if the model has a vision tower or the plan states images; else None.

    Assumed values are noted in ``defaults``.
    """
    vision = None
    if not isinstance(architecture, Rough):
        vision = architecture.vision
        has_unmodelled_tower = any(tower.part in ("vision", "audio") for tower in architecture.others)
        if vision is None and has_unmodelled_tower:
            return resolve_idle(training, architecture, defaults)
    if vision is None and training.images is None:
        return None
    stated = training.images
    if vision is not None and stated is not None and stated.per_sample != 0:
        note_version(training, vision, framework, options, defaults)
    return resolve_images(training, vision, defaults)


def pictures_of(job: TrainingJob, vision: Vision) -> Pictures:
    """Return the pictures of one micro-batch: how many, their patch rows in the tower, their tokens in the sequence."""
    per_sample = job.images or filling(vision, job.sequence_length)
    samples = job.rows
    sizes = (
        per_sample.patches_by_picture if job.attention == "eager" else ()
    )  # the scores of other kernels do not stay in memory
    if samples * len(sizes) > MOST_SIZES:
        message = f"{samples * len(sizes):,} pictures of sizes of their own in a micro-batch are not replayed"
        help = f"list at most {MOST_SIZES:,}, or say the patches of all pictures together, which takes them to be alike"
        raise UnsupportedError(message, help, PLACE + "/patches")
    return Pictures(
        pictures=samples * per_sample.pictures_per_sample,
        patches=samples * per_sample.patches_per_sample,
        image_tokens=samples * per_sample.tokens_per_sample,
        patches_by_picture=samples * sizes,
    )


def are_there(job: TrainingJob) -> bool:
    """Whether samples have pictures, where the model has a tower."""
    return job.images is None or job.images.patches_per_sample > 0


def filling(vision: Vision, sequence: int) -> Images:
    """Return the most pictures whose image tokens fit into one sequence of ``sequence`` tokens.

    The vision tower cannot get more patch rows than theirs.
    """
    if vision.text_layers_that_read_images:  # pictures take no place in the sequence: one of them
        return Images(pictures_per_sample=1, patches_per_sample=vision.rows_per_tile, tokens_per_sample=1)
    if vision.tokens_per_picture:  # every picture becomes the same number of tokens
        pictures = ceil_div(sequence, vision.tokens_per_picture)
        tokens = min(sequence, pictures * vision.tokens_per_picture)
        return Images(
            pictures_per_sample=pictures, patches_per_sample=pictures * vision.largest_picture, tokens_per_sample=tokens
        )
    if vision.rows_per_tile:  # pictures are cut into tiles of equal size
        tiles = ceil_div(sequence, vision.tokens_per_tile)
        return Images(
            pictures_per_sample=tiles,
            patches_per_sample=tiles * vision.rows_per_tile,
            tokens_per_sample=min(sequence, tiles * vision.tokens_per_tile),
        )
    return Images(
        pictures_per_sample=1, patches_per_sample=sequence * vision.patches_per_token, tokens_per_sample=sequence
    )  # one picture of any size


def resolve_images(training: plan_types.TrainingSpec, vision: Vision | None, defaults: Defaults) -> Images | None:
    """Return the patches and image tokens that the processor makes of one sample's images. None: they fill the
    sequence.

    A plan without ``images`` has samples of text, which is noted in ``defaults``.

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
        images = _stated(training, vision, stated.patches, stated.tokens, defaults)
        return images if vision.text_layers_that_read_images else _fitting(training, vision, images, defaults)
    per_sample = defaults.stated_or("training.images.per_sample", _number(stated), 1)
    if per_sample == 0:
        images = NONE
    elif stated.width is not None and stated.height is not None:
        try:
            limits = Limits(stated.min_pixels, stated.max_pixels)
            one_picture = tokens_of(vision, stated.height, stated.width, stated.frames, limits)
        except PictureError as error:
            _fail(error.message, error.help)
        if per_sample > 1 and one_picture.each_of_several is not None:  # some processors split a single image only
            pictures, patches, tokens = one_picture.each_of_several
            one_picture = one_picture._replace(pictures=pictures, patches=patches, image_tokens=tokens)
        for key, value, why in one_picture.defaults:
            defaults.note(f"training.images.{key}", value, why)
        images = Images(
            per_sample * one_picture.pictures, per_sample * one_picture.patches, per_sample * one_picture.image_tokens
        )
        if len(set(one_picture.patches_by_picture)) > 1:
            images = images._replace(patches_by_picture=per_sample * one_picture.patches_by_picture)
    else:
        _fail(
            f"{per_sample} pictures a sample of unknown size",
            "write their width and height in pixels, or patches and tokens as the processor counts them",
        )
    return _fitting(training, vision, images, defaults)


def _number(images: plan_types.ImagesSpec) -> int | None:
    """Return the number of pictures per sample that a plan states; None if it states none."""
    return images.per_sample if isinstance(images.per_sample, int) else None


def _fills(stated: plan_types.ImagesSpec, vision: Vision, defaults: Defaults) -> None:
    """Check ``images: {per_sample: fill}``: the plan asks for the most pictures that a sequence can hold."""
    if stated != plan_types.ImagesSpec(per_sample=FILL):
        _fail("`per_sample: fill` takes pictures of any size", "write `images: {per_sample: fill}`, or count them")
    if vision.text_layers_that_read_images:
        defaults.note("training.images", "one picture a sample", "sequence_length does not bound their number")
        return
    defaults.note("training.images", "sequence_length image tokens a sample", "the most that a sequence holds")


def _stated(
    training: plan_types.TrainingSpec, vision: Vision, rows: int | tuple[int, ...], tokens: int, defaults: Defaults
) -> Images:
    """Return the images of one sample of a plan that states their patches and tokens.

    ``rows``: patches of all images of a sample together, or a number for each image. ``tokens``: image tokens of all.
    """
    stated = training.images or plan_types.ImagesSpec()
    sizes = () if isinstance(rows, int) else rows
    per_sample = len(sizes) or defaults.stated_or("training.images.per_sample", _number(stated), 1)
    if stated.per_sample not in (None, per_sample):
        _fail(f"patches of {per_sample} pictures, and per_sample is {stated.per_sample}", "remove per_sample")
    patches = rows if isinstance(rows, int) else sum(rows)
    if vision.text_layers_that_read_images:
        return _padded(training, vision, per_sample, patches, tokens)
    images = _counted(vision, per_sample, patches, tokens)
    if len(set(sizes)) > 1 and not (vision.rows_per_tile or vision.tokens_per_picture or vision.token_budgets):
        return images._replace(patches_by_picture=sizes)
    if per_sample > 1 and not vision.rows_per_tile and not sizes:
        patches_per_picture = ceil_div(patches, per_sample)
        why = "pictures of a sample are taken to be alike: eager attention keeps more of unequal ones (list each)"
        defaults.note("training.images.patches", f"{patches_per_picture} a picture", why)
    return images


def resolve_idle(training: plan_types.TrainingSpec, architecture: Architecture, defaults: Defaults) -> Images:
    """Return the images of one sample for a tower that is modelled as frozen: each has a fixed number of tokens.

    Raises:
        ResolutionError: the plan does not say that there are none, and a tower has no memory model of them.
    """
    stated = training.images
    if stated is None:
        defaults.note("training.images", "none", UNSTATED)
        return NONE
    if stated.per_sample == 0:
        return NONE
    tokens_per_picture = max((embedder.image_tokens for embedder in architecture.embedders), default=0)
    if not tokens_per_picture:
        _fail(
            "memcheck has no model of this model's tower as it runs, only of one that is resident",
            "where samples are text alone, without pictures and sounds, write `images: {per_sample: 0}`; for the "
            "language model by itself `model: {part: language}`",
        )
    if stated.per_sample == FILL:
        _fail("the plan does not say how many pictures a sample has", "write `images: {per_sample: 0}`, or how many")
    pictures = defaults.stated_or("training.images.per_sample", _number(stated), 1)
    if stated.tokens is not None and stated.tokens != pictures * tokens_per_picture:
        _fail(
            f"{stated.tokens:,} image tokens are not those of {pictures} pictures",
            f"a picture becomes {tokens_per_picture}",
        )
    patches = sum(stated.patches) if isinstance(stated.patches, tuple) else stated.patches
    images = Images(pictures, patches or pictures * tokens_per_picture, pictures * tokens_per_picture)
    if training.sequence_length is not None and images.tokens_per_sample >= training.sequence_length:
        _fail(
            f"the pictures of a sample become {images.tokens_per_sample:,} tokens, and sequence_length is "
            f"{training.sequence_length:,}",
            "sequence_length counts image tokens, too: raise it, or write fewer pictures",
        )
    return images


def _padded(training: plan_types.TrainingSpec, vision: Vision, per_sample: int, patches: int, tokens: int) -> Images:
    """Return the images of one sample for a processor that pads each of them to the same number of tiles.

    ``patches``, ``tokens``: as stated for ``per_sample`` images. Padded tiles cost as much as others. Numbers that are
    too large for one sample may be those of all samples of the micro-batch.
    """
    padded = per_sample * vision.rows_per_tile
    samples = training.micro_batch_size or 1
    if patches > padded * samples:
        _fail(
            f"{patches:,} patches of {per_sample} pictures are more than the processor leaves",
            f"a picture has {vision.rows_per_tile:,} at most; `per_sample` says how many a sample has",
        )
    if not patches:
        return Images(pictures_per_sample=0, patches_per_sample=0, tokens_per_sample=tokens)
    return Images(pictures_per_sample=per_sample, patches_per_sample=padded, tokens_per_sample=tokens)


def _counted(vision: Vision, per_sample: int, patches: int, tokens: int) -> Images:
    """Return the pictures of a sample as the tower counts them: tiles and crops are pictures of their own.

    ``patches``, ``tokens``: patch rows and image tokens of all pictures of the sample.

    Raises:
        ResolutionError: the processor cannot make that many patches.
    """
    if vision.tokens_per_picture:  # a picture that is split counts as several
        return Images(
            pictures_per_sample=max(per_sample, tokens // vision.tokens_per_picture),
            patches_per_sample=patches,
            tokens_per_sample=tokens,
        )
    if vision.token_budgets:
        patches_per_picture = ceil_div(patches, max(1, per_sample))
        needed = max(patches_per_picture, vision.rows_per_tile)
        padded_sizes = [
            budget * vision.patches_per_token for budget in vision.token_budgets
        ]  # to which the processor pads a picture
        rows = next((size for size in padded_sizes if size >= needed), None)
        if rows is None:
            _fail(
                f"{patches:,} patches of {per_sample} pictures are more than the processor leaves",
                f"a picture has {vision.token_budgets[-1] * vision.patches_per_token:,} at most",
            )
        return Images(per_sample, per_sample * rows, tokens)
    if vision.rows_per_tile:
        if patches % vision.rows_per_tile:
            _fail(
                f"{patches:,} patches are no multiple of the {vision.rows_per_tile:,} of a tile",
                "count the rows of every tile, its class token included",
            )
        return Images(patches // vision.rows_per_tile, patches, tokens)
    return Images(per_sample, patches, tokens)


def _fitting(training: plan_types.TrainingSpec, vision: Vision, images: Images, defaults: Defaults) -> Images:
    """Return ``images``, the pictures of one sample, if a sequence holds their tokens and at least one token of text.

    If they are too many for one sample, the plan may have stated the sum over the micro-batch. Then they are divided by
    its samples, and the division is noted as an assumption.
    """
    sequence, samples = training.longest_row or training.sequence_length, training.micro_batch_size or 1
    if (
        sequence is None
        or vision.text_layers_that_read_images
        or images.tokens_per_sample + vision.separator_tokens * images.pictures_per_sample < sequence
    ):
        return images
    share = Images(
        ceil_div(images.pictures_per_sample, samples),
        ceil_div(images.patches_per_sample, samples),
        ceil_div(images.tokens_per_sample, samples),
    )
    stated = training.images
    if samples > 1 and stated is not None and isinstance(stated.patches, int) and share.tokens_per_sample < sequence:
        if isinstance(stated.per_sample, int) and not vision.rows_per_tile:
            share = share._replace(pictures_per_sample=stated.per_sample)
        stated_tokens = images.tokens_per_sample
        why = f"{stated_tokens:,} are more than a sequence of {sequence:,} holds: read as of all {samples} samples"
        defaults.note("training.images.tokens", share.tokens_per_sample, why)
        return share
    if images.tokens_per_sample < sequence:
        return images
    return _fail(
        f"the pictures of a sample become {images.tokens_per_sample:,} tokens, and sequence_length is {sequence:,}",
        "sequence_length counts image tokens, too: raise it, or write fewer or smaller pictures",
    )


def _fail(message: str, help: str) -> NoReturn:
    raise ResolutionError((JobProblem("images", PLACE, message, help=help),))
