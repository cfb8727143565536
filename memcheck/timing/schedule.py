"""What a pipeline adds: ranks that wait for others, and hidden states on their way.

Sources: Narayanan et al. 2021, section 2.2 (1F1B and its interleaved form: the bubble divided by the virtual stages);
Qi et al. 2023, table 2 (ZB-H1: (p - 1)(F + B - 2 W)); the README of deepseek-ai/DualPipe: (S / 2 - 1)(F&B + B - 3 W)
over S stages. torch runs DualPipeV, whose p ranks have S = 2 p stages of half the length: (p - 1) / 2 in whole ranks.
F, B and W are one micro-batch's forward, backward and weight-gradient times.
"""

from __future__ import annotations

from memcheck.job.types import Layout
from memcheck.timing.model import Stage
from memcheck.timing.stage import StageTime


def bubble_seconds(
    layout: Layout, micro_batches: int, stages: tuple[Stage, ...], times: list[StageTime], slowest: StageTime
) -> float:
    """How long the slowest rank waits: one micro-batch of every other rank, less what the schedule fills in.

    What fills a bubble are the rank's own weight gradients: it has one per micro-batch. DualPipe needs two micro-
    batches per rank to feed both ends (torch's ScheduleDualPipeV refuses fewer); below that it is taken as zero-bubble.
    """
    ways = layout.pipeline
    if ways == 1:
        return 0.0
    others = sum(stage.ranks * time.seconds for stage, time in zip(stages, times, strict=True)) - slowest.seconds
    schedule = layout.pipeline_schedule
    if schedule == "interleaved-1f1b":
        return others / layout.virtual_stages
    if schedule == "dualpipe" and micro_batches >= 2 * ways:
        each = others / (ways - 1) - 3 * slowest.weights
        return max(0.0, (ways - 1) / 2 * each)
    if schedule in ("zero-bubble", "dualpipe"):
        return max(0.0, others - min(2 * (ways - 1), micro_batches) * slowest.weights)
    return others


def pipeline_seconds(layout: Layout, micro_batches: int, send: float) -> float:
    """Hidden states to the next rank and gradients back. Every micro-batch waits for both under GPipe and 1F1B.
    Interleaved and bidirectional schedules overlap the sends with another chunk's computation, except the first and
    last ones.
    """
    if layout.pipeline == 1:
        return 0.0
    fill = 2 * send * (layout.pipeline - 1)
    if layout.pipeline_schedule in ("gpipe", "1f1b"):
        return fill + 2 * send * micro_batches
    return fill
