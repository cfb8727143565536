"""Which part of a multimodal model a parameter belongs to, by the names that transformers gives modules."""

from __future__ import annotations

PARTS = (
    (
        "projector",
        (
            "visual.merger",
            "visual.deepstack_merger",
            "projector",
            "embed_vision",
            "embed_audio",
            "modality_projection",
            "connector",
            "vision_adapter",
            "vision_projection",
            "visual.downsample",
            "merger",
            "qformer",
            "query_tokens",
            "language_projection",
            "resampler",
            "perceiver",
            "aligner",
            "image_newline",
            "head_linear",
            "head_norm",
            "visual_embeddings_table",
        ),
    ),
    ("audio", ("audio_tower", "audio_encoder", "sound")),
    (
        "vision",
        (
            "visual",
            "vision_tower",
            "vision_model",
            "vision_embed_tokens",
            "image_tower",
            "video_tower",
            "vision_encoder",
            "vqmodel",
            "generation_",
        ),
    ),
)
"""Parts and what their modules' paths contain: the first that fits has it, the language model what is left."""


def part_of_path(name: str) -> str:
    """``vision`` | ``projector`` | ``audio`` | ``language``."""
    for part, words in PARTS:
        if any(word in name for word in words):
            return part
    return "language"
