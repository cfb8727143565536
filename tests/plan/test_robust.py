from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from memcheck.plan.read import load_documents, read_plan
from tests.plan.samples import FULL, SERVING

FRAGMENTS = ["memcheck: 1", "model: a", "training:", "  ", "\n", ": ", "- ", "[", "]", "{", "}", "&a ", "*a", "<<: *a", "!!str ", "1e5", "on", ".nan", "'", '"', "#", "---\n", "|", "\t", "extends: x.yaml", "é", "0o17", "freeze: [", "rough: {parameters: 8b}"]  # fmt: skip


def check(data: bytes) -> None:
    for document in load_documents("x.yaml", data):
        plan, findings = read_plan(document)
        assert plan is not None or findings or document.values is None
        for finding in findings:
            span = finding.location.span
            assert 1 <= span.line <= span.end_line
            assert span.column >= 1
            assert span.line <= max(1, len(document.sources[finding.location.path]))
            assert finding.message


@given(st.binary(max_size=80))
@example("À\x0b".encode())
@example(b"a: \x0c\nb: \x1e")
def test_any_bytes_are_answered(data):
    """Whatever the bytes, the answer is documents and located findings, never an exception."""
    check(data)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join))
@example("*a: 1")
@example("<<: [1]\nmemcheck: 1")
@example("memcheck: 1\nmodel: a\nhardware: {gpu: b, <<: {nodes: 0}}\ntraining: {}\n")
def test_any_yaml_is_answered(text):
    """YAML of every shape is answered the same way."""
    check(text.encode())


@given(
    st.integers(0, len(FULL) - 1),
    st.integers(1, 12),
    st.sampled_from([*FRAGMENTS, ""]),
    st.sampled_from([FULL, SERVING]),
)
def test_any_damage_to_a_plan_is_answered(start, length, new, plan):
    """A plan with any passage replaced is answered; an unharmed one is the exception, not the rule."""
    check((plan[:start] + new + plan[start + length :]).encode())
