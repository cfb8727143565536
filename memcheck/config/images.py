"""The images per sample, which the user states in addition to a framework's config that does not say them."""

from __future__ import annotations


def read_images(written: object) -> dict[str, int]:
    """A mapping as ``training.images`` of a plan has it.

    Raises:
        ValueError: it is none.
    """
    from memcheck.plan.schema import load_schema
    from memcheck.plan.valid import conforms

    root = load_schema()
    if not isinstance(written, dict) or not conforms(written, root["definitions"]["images"], root):
        raise ValueError(
            f"{written!r} is not what training.images of a plan takes: per_sample: 2, width: 1280, height: 720; "
            "or per_sample, patches and tokens"
        )
    return dict(written)
