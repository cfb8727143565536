"""Prediction and observation side by side."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import Instant, RankEstimate, TensorGroup
from memcheck.verify.compare import RankObservation, compare, instants, sentence
from memcheck.verify.report import share

GIB = 2**30


def instant(name: str, **components: float) -> Instant:
    """An instant of so many GiB."""
    found = {k: int(v * GIB) for k, v in components.items()}
    return Instant(name, f"something in {name}", sum(found.values()), found)


PREDICTED = RankEstimate(
    0,
    (
        instant("init", parameters=2, optimizer_states=4),
        instant("forward", parameters=2, optimizer_states=4, activations=1),
        instant("backward", parameters=2, optimizer_states=4, activations=5, temporaries=1),
    ),
    10,
)


def observed(*found: Instant, largest: tuple[TensorGroup, ...] = ()) -> RankObservation:
    """One rank."""
    return RankObservation(0, 0, found, 10, largest)


SEEN = observed(
    instant("init", parameters=2, optimizer_states=4),
    instant("forward", parameters=2, optimizer_states=4, activations=3),
    instant("backward", parameters=2, optimizer_states=4, activations=4.5, temporaries=1.25),
    largest=(
        TensorGroup("mul in mlp", "[8, 8] bf16", 3, 3, "temporaries"),
        TensorGroup("mm in mlp", "[8, 4] bf16", 2, 2, "activations"),
    ),
)


@pytest.mark.parametrize(
    ("difference", "told"),
    [(0.0042, "+0.42%"), (-0.0042, "-0.42%"), (-0.00001, "0.00%"), (0.0, "0.00%"), (-0.1, "-10.00%")],
)
def test_no_figure_has_a_sign_without_a_difference(difference: float, told: str) -> None:
    """Neither ``+0.00%`` nor ``-0.00%``."""
    assert share(difference) == told


def test_terms_at_the_peak_come_first_and_the_largest_of_them() -> None:
    """A larger difference at another instant is no reason for the peak."""
    terms = compare(PREDICTED, SEEN).terms
    assert [(t.instant, t.component, t.difference / GIB) for t in terms[:3]] == [
        ("backward", "activations", 0.5),
        ("backward", "temporaries", -0.25),
        ("backward", "parameters", 0),
    ]
    assert next(t.difference / GIB for t in terms if t.instant != "backward") == -2


def test_error_and_agreement() -> None:
    """Relative to what was observed, both ways."""
    comparison = compare(PREDICTED, SEEN)
    assert comparison.error == pytest.approx(12 / 11.75 - 1)
    assert not comparison.agrees()
    assert comparison.agrees(0.03)
    low = compare(PREDICTED, observed(instant("backward", parameters=13)))
    assert low.error < 0
    assert not low.agrees(0.05)


def test_a_measurement_is_compared_with_workspaces_added() -> None:
    """Counters include what no tensor of the step shows."""
    comparison = compare(PREDICTED, SEEN, surplus=GIB)
    assert comparison.predicted_bytes == 13 * GIB


def test_sentence_names_component_figures_and_tensor() -> None:
    """One sentence on the largest difference."""
    assert sentence(compare(PREDICTED, SEEN)) == (
        "At the peak (backward) activations are predicted 0.50 GiB too high: 5.00 GiB against 4.50 traced; the largest"
        " there: 2 x [8, 4] bf16, mm in mlp."
    )


def test_sentence_when_the_peaks_are_at_different_instants() -> None:
    """Components of two moments are not compared."""
    seen = observed(instant("forward", parameters=20), instant("backward", parameters=3))
    text = sentence(compare(PREDICTED, seen))
    assert text.startswith("The peak is traced in forward, and predicted in backward: there 7.00 GiB are predicted")


def test_sentence_when_nothing_differs() -> None:
    """Differences below a thousandth of the peak are not worth a name."""
    seen = observed(*PREDICTED.instants)
    assert "no component differs" in sentence(compare(PREDICTED, seen))


def test_sentence_of_a_measurement_knows_totals_alone() -> None:
    """Counters have no components."""
    seen = observed(Instant("backward", "", 11 * GIB, {}))
    assert sentence(compare(PREDICTED, seen), "measured") == "The peak is predicted 1.00 GiB too high."


def test_instants_of_both_sides_in_the_order_of_a_step() -> None:
    """What only one side knows is shown without a partner."""
    seen = observed(instant("optimizer", parameters=1), instant("forward", parameters=2))
    rows = [
        (name, said and said / GIB, found and found / GIB)
        for name, said, found, _ in instants(compare(PREDICTED, seen))
    ]
    assert rows == [("init", 6, None), ("forward", 7, 2), ("backward", 12, None), ("optimizer", None, 1)]
