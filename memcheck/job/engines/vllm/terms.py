"""What a rank holds before its KV cache, term by term, each with the interval that its sources leave.

Exact: weights and buffers (:mod:`memcheck.job.engines.vllm.weights`). Uncertain: the profile run, what lies outside of
torch, CUDA graphs. Public readings behind the intervals are in ``docs/internals/engines.md``.
"""

from __future__ import annotations

from memcheck.job.engines.types import GRAPHS_SEEN, EngineSettings, Term, Transients
from memcheck.job.engines.vllm.versions import Version
from memcheck.job.engines.vllm.weights import RankBytes
from memcheck.models.types import Architecture
from memcheck.record import Record

GIB, MIB = 2**30, 2**20
FIT_TENTHS = 384
"""Tenths of a byte per sequence and word of the vocabulary in the sampler's dummy run up to 0.11: logits, their fp32
copy, sorted values and int64 indices, probabilities and sums. Fitted on four public boots (H100, 1,024 sequences),
within 0.4 %; two more agree."""
FIT_ERROR = 0.02
"""Relative error of the fit, in either direction."""


class Interval(Record):
    """A number that is known up to an interval."""

    low: int
    expected: int
    high: int


SAMPLER = Interval(low=4, expected=14, high=18)
"""Bytes per sequence and word from 0.20 on: fp32 logits; with the bf16 ones, probabilities and noise; with processed
log-probabilities. Read in the code, not checked against a log."""
OUTSIDE_MIB = Interval(low=100, expected=134, high=310)
"""What the driver sees grow while the model loads and runs once on one GPU, beyond torch: 0.13 to 0.14 GiB in three
boots (llm-d-planner's list, vLLM 0.11.0). The upper end is twice the highest."""
OUTSIDE_SEVERAL_MIB = Interval(low=200, expected=563, high=1700)
"""The same on each of several GPUs: 0.55 GiB in one boot of two. The upper end is three times that."""
SEGMENTS_MIB = 512
"""From 0.26 on the driver's view counts segments of the allocator as well (vLLM 49208): split at 20 MiB while loading.
The size is not published; this is the most that is assumed."""


def terms_of(
    architecture: Architecture, held: RankBytes, settings: EngineSettings, version: Version, seen: Transients
) -> tuple[Term, ...]:
    """The terms of one pipeline rank: weights, buffers, towers, profile run, outside of torch, CUDA graphs."""
    weights = _exact("weights", held.weights_bytes, "shapes of the engine's modules")
    buffers = _exact("buffers", held.buffers_bytes, "rotary tables and scales")
    towers = _exact("towers", held.towers_bytes, "shapes of vision and audio towers")
    seen = Transients(seen.layer, seen.tower if held.towers_bytes else 0)
    return (
        *(term for term in (weights, buffers, towers) if term.expected_bytes or term.name == "weights"),
        profile(architecture, settings, version, seen, pictures=held.towers_bytes > 0),
        outside(settings, version),
        graphs(settings),
    )


def _exact(name: str, count: int, source: str) -> Term:
    """Return a term of ``count`` bytes that leaves no interval."""
    return Term(name=name, low_bytes=count, high_bytes=count, source=source, expected_bytes=count)


def profile(
    architecture: Architecture, settings: EngineSettings, version: Version, seen: Transients, *, pictures: bool
) -> Term:
    """Estimate the transient bytes of vLLM's profile run: the highest of a layer, of the tower and of the sampler.

    ``pictures``: the tower runs, too. Early versions are a fit to published logs, with its error as the interval.
    """
    logits = settings.sequences * architecture.vocab_size
    states_bytes = 2 * settings.batched_tokens * architecture.hidden_size  # the last hidden states, in 16 bits
    if version.profile == "fit":
        fitted = logits * FIT_TENTHS // 10 + states_bytes
        low, expected, high = int(fitted * (1 - FIT_ERROR)), fitted, int(fitted * (1 + FIT_ERROR))
        high = max(high, seen.layer + states_bytes)
        if pictures:  # the one public boot with a tower, Mistral Small 3.2, shows a layer's pass, and less than the fit
            low, expected, high = states_bytes, max(seen.layer, seen.tower), max(high, seen.tower + fitted)
        source = "vLLM up to 0.11: 38.4 x max_num_seqs x vocabulary + 2 T H"
    else:
        model_bytes = max(seen.layer, seen.tower)
        expected = max(model_bytes, states_bytes + SAMPLER.expected * logits)
        low = min(states_bytes + SAMPLER.low * logits, expected)
        high = max(2 * model_bytes, states_bytes + SAMPLER.high * logits, expected)
        source = "one layer on max_num_batched_tokens, or the sampler on max_num_seqs x vocabulary; no log to check it"
    return Term(name="profile", low_bytes=low, high_bytes=high, source=source, expected_bytes=expected)


def outside(settings: EngineSettings, version: Version) -> Term:
    """Return the memory outside torch's allocator, as the driver sees it: kernels, workspaces, communicators."""
    gpus = settings.tensor * settings.pipeline
    outside_mib = OUTSIDE_MIB if gpus == 1 else OUTSIDE_SEVERAL_MIB
    segments_mib = SEGMENTS_MIB if version.graphs_in_share else 0
    return Term(
        name="outside",
        low_bytes=outside_mib.low * MIB,
        high_bytes=(outside_mib.high + segments_mib) * MIB,
        source="four public boots of vLLM 0.11.0",
        expected_bytes=outside_mib.expected * MIB,
    )


def graphs(settings: EngineSettings) -> Term:
    """Return the memory of CUDA graphs: exact where it is stated or graphs are off, else an interval from 0 to
    unknown.
    """
    if settings.graphs_bytes is None:
        return Term(
            name="graphs",
            low_bytes=0,
            high_bytes=None,
            source=f"no formula is known: {GRAPHS_SEEN}",
            expected_bytes=0,
        )
    source = "enforce_eager: none are made" if settings.eager else "stated: graphs_gib"
    return _exact("graphs", settings.graphs_bytes, source)
