"""The space holds every layout once, and pruning it loses nothing that fits."""

from __future__ import annotations

import pytest

from memcheck.job.types import TrainingJob
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.changes import UNCHANGED
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.explore import explore
from memcheck.what_if.search.goals import clusters
from memcheck.what_if.search.space import NODES, leaves_activations, singles, space_of, together, training_layouts
from tests.what_if.search.contexts import EXPERTS, PIPELINED, SERVING, TRAINING, context_of

EACH = pytest.mark.parametrize("text", TRAINING.values(), ids=list(TRAINING))


@EACH
def test_layouts_are_distinct_and_hold_the_written_one(text: str) -> None:
    """No layout comes twice, and exactly one of them changes nothing."""
    context = context_of(text)
    assert context.training is not None
    found = [tuple(sorted(c.set.items(), key=str)) for c in training_layouts(context, context.training)]
    assert len(found) == len(set(found))
    assert found.count(()) == 1


@EACH
def test_a_legal_layout_is_the_job_that_it_says(text: str) -> None:
    """The changes of a layout give a job on all GPUs, with the global batch of the plan as written."""
    context = context_of(text)
    pricer, job = Pricer(context), context.training
    assert job is not None
    batch = job.micro_batch_size * job.layout.data * job.gradient_accumulation_steps
    seen = set()
    for candidate in training_layouts(context, job):
        resolved = pricer.legal(candidate)
        if resolved is None:
            continue
        assert isinstance(resolved.job, TrainingJob)
        layout = resolved.job.layout
        assert layout.world_size == job.layout.world_size
        assert layout.tensor * layout.context * layout.pipeline * layout.data == layout.world_size
        assert resolved.job.micro_batch_size * layout.data * resolved.job.gradient_accumulation_steps == batch
        assert layout not in seen
        seen.add(layout)
    assert len(seen) > 3


@pytest.mark.slow
@EACH
def test_pruning_loses_nothing_that_fits(text: str) -> None:
    """Judging every plan of the space one by one, without the lower bound, finds the same plans."""
    context = context_of(text)
    space = space_of(context, UNCHANGED)
    space = space._replace(layouts=space.layouts[::5], states=space.states[-2:])
    pruned = Pricer(context)
    quick = [p.changes for p in explore(pruned, space)]
    whole, thorough = Pricer(context), []
    for layout in space.layouts:
        for states in space.states:
            for steps in space.steps:
                priced = whole.price(together(layout, states, steps), prune=False)
                if priced is not None and whole.fits(priced):
                    thorough.append(priced.changes)
    assert quick == thorough
    assert pruned.tally.considered == whole.tally.considered
    assert pruned.tally.fitting == whole.tally.fitting


def test_what_is_kept_does_not_change() -> None:
    """Neither a key nor a section that is kept is among the changes of any plan."""
    context = context_of(TRAINING["pipelined"])
    pricer = Pricer(context, ("parallelism.tensor", "training.optimizer"))
    found = list(explore(pricer, space_of(context, UNCHANGED)))
    assert found == []
    pricer = Pricer(context, ("parallelism",))
    found = list(explore(pricer, space_of(context, UNCHANGED)))
    assert found
    assert not any(key.startswith("parallelism") for priced in found for key in priced.changes)


def test_serving_layouts_split_the_model_only() -> None:
    """A served model is cut by tensor and pipeline parallelism."""
    context = context_of(SERVING)
    found = space_of(context).layouts
    assert {key for c in found for key in c.set} == {"parallelism.tensor", "parallelism.pipeline"}


def test_clusters_ascend() -> None:
    """Parts of a node, whole nodes, the written number of nodes; never more than asked for."""
    layout = context_of(TRAINING["titan"]).layout._replace(nodes=3)
    assert list(clusters(layout, 24)) == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8)]
    assert [n * g for n, g in clusters(layout, 128, above=24)] == [32, 64, 128]


@EACH
def test_the_space_of_some_keys_is_that_part_of_the_whole(text: str) -> None:
    """Of every part of the space, in its order, the changes that set nothing but some keys or fields of them."""
    context = context_of(text)
    whole = space_of(context, UNCHANGED, faster=True)
    for keys in (
        ("parallelism.tensor",),
        ("parallelism.context", "training.micro_batch_size"),
        ("parallelism.pipeline", "parallelism.virtual_stages", "training.activation_checkpointing"),
        ("training.optimizer.offload", "training.loss.kind"),
    ):

        def inside(key: str, keys: tuple[str, ...] = keys) -> bool:
            return any(key == k or key.startswith(f"{k}.") or k.startswith(f"{key}.") for k in keys)

        expected = [[c for c in part if all(map(inside, c.set))] for part in whole]
        assert [list(part) for part in space_of(context, UNCHANGED, faster=True, keys=keys)] == expected


STAGED = """\
memcheck: 1
model: mixtral-8x7b
hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 4}
parallelism: {pipeline: 4, pipeline_schedule: interleaved-1f1b, virtual_stages: 8, expert: 8, zero_stage: 1}
training: {framework: megatron, micro_batch_size: 1, sequence_length: 8192, global_batch_size: 256}
"""


COPIED = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 1}
training: {framework: pytorch, micro_batch_size: 2, sequence_length: 8192, gradient_accumulation_steps: 4}
"""


@pytest.mark.parametrize("text", [PIPELINED, EXPERTS, STAGED], ids=["pipelined", "experts", "staged"])
def test_what_only_divides_states_does_not_fit_where_activations_are_too_much(text: str) -> None:
    """A change that leaves activations alive is too large, as soon as they and the least that rests are."""
    context = context_of(text)
    assert context.estimate is not None
    assert context.training is not None
    pricer = Pricer(context)
    seen = 0
    for candidate in singles(context):
        legal = pricer.look(candidate)
        if legal is None or not isinstance(legal.resolved.job, TrainingJob):
            continue
        alike = leaves_activations(candidate.kind, context.training, legal.resolved.job)
        if alike and pricer.is_above(legal.resolved, context.estimate.components_bytes["activations"]):
            priced = pricer.price_legal(legal, prune=False)
            assert priced is not None
            assert not pricer.fits(priced), candidate.title
            seen += 1
    assert seen


@pytest.mark.parametrize(("batch", "expected"), [("256", [True, True]), ("128", [True, False])])
def test_more_nodes_leave_activations_while_they_fill_the_pipeline(batch: str, expected: list[bool]) -> None:
    """With as many micro-batches as ranks a pipeline holds fewer at once than with many."""
    context = context_of(STAGED.replace("256", batch))
    assert [alike for _, alike in _alike(context, NODES)] == expected


def test_a_stage_that_does_away_with_autocast_does_away_with_its_copies() -> None:
    """FSDP gathers in 16 bits what autocast had copied: ZeRO's third stage fits where those copies are half the GPU."""
    context = context_of(COPIED)
    assert [alike for change, alike in _alike(context, "zero") if change["parallelism.zero_stage"] == 3] == [False]


def _alike(context: RuleContext, kind: str) -> list[tuple[dict[str, object], bool]]:
    """Changes of this kind, and whether activations stay."""
    assert context.training is not None
    found = [each for each in map(Pricer(context).look, singles(context)) if each and each.candidate.kind == kind]
    jobs = [(each.changes, each.resolved.job) for each in found]
    return [(c, leaves_activations(kind, context.training, j)) for c, j in jobs if isinstance(j, TrainingJob)]
