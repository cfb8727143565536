"""The controls of a plan: legal values are exactly those that the rules accept, and what is set is what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE, Gate
from memcheck.errors import UnsupportedError, UsageError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.judge import effective_policy
from memcheck.live.choices import Choosing, every_key, stated_value
from memcheck.live.form import MAIN, choices, form, forms
from memcheck.live.moves import Positions, moved
from memcheck.live.protocol import Session
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents, read_plan
from memcheck.plan.value_edits import edited
from memcheck.rules.result import PlanResult
from memcheck.rules.run import check_layout, make_context

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANS = {
    path.stem: path.read_bytes()
    for path in sorted(EXAMPLES.glob("*.yaml"))
    if b"source:" not in path.read_bytes() and b"extends:" not in path.read_bytes()
}
PLAIN = PLANS["llama-3.1-8b-fsdp-8xh100"]
FINITE = sorted(key for key in forms() if key == "hardware.gpu" or key in MAIN)


def document_of(data: bytes) -> Document:
    """The first plan of a text."""
    return load_documents("plan.yaml", data)[0]


def is_refused(document: Document) -> bool:
    """Whether reading, resolving or a layout rule finds an error: the plain way, without anything shared."""
    plan, findings = read_plan(document)
    if plan is None or any(each.severity == "error" for each in findings):
        return True
    plan = plan._replace(policy=effective_policy(plan.policy, Gate()))
    try:
        resolved = resolve(plan, FRAMEWORKS, base_dir=".")
        context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
        return any(each.severity == "error" for each in check_layout(context)[0])
    except (ResolutionError, UnsupportedError):
        return True


@pytest.mark.slow
@given(st.sampled_from(sorted(PLANS)), st.sampled_from(FINITE), st.data())
@settings(max_examples=60)
def test_legal_values_are_those_that_pass_the_rules(name: str, key: str, data: st.DataObject) -> None:
    """A value written into the text is refused exactly where it was said to be, and then with the reason."""
    document = document_of(PLANS[name])
    found = choices(key, Choosing(document))
    if not found:
        return
    choice = data.draw(st.sampled_from(found))
    try:
        made = moved(document, {key: choice.value})
    except UsageError:
        return  # the next test says where that may be
    text = edited(PLANS[name], made[0].edits) if made else PLANS[name]
    assert is_refused(document_of(text)) == (not choice.legal), (key, choice)
    assert bool(choice.reason) == bool(choice.code) == (not choice.legal)


@given(st.sampled_from(sorted(PLANS)), st.lists(st.sampled_from(sorted(forms())), min_size=1, max_size=3, unique=True))
@settings(max_examples=60)
def test_what_is_set_is_what_is_read(name: str, keys: list[str]) -> None:
    """Edits of a plan that stands alone are found for every key, change no other value, and leave other bytes alone."""
    keys = keys[:1] + [key for key in keys[1:] if not key.startswith("model")]
    keys = [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]  # one value, not two
    data = PLANS[name]
    document = document_of(data)
    wanted = {key: sample(key) for key in keys}
    made = moved(document, wanted)
    text = edited(data, made[0].edits) if made else data
    after = document_of(text)
    for key, value in wanted.items():
        assert stated_value(after.values, key) == value, text.decode()
    touched = sum(edit.span.end_line - edit.span.line + 1 for each in made for edit in each.edits)
    old, new = data.decode().splitlines(), text.decode().splitlines()
    assert len(set(old) - set(new)) <= touched


def sample(key: str) -> Any:
    """A value of the kind that a key takes."""
    kind = forms()[key].kind
    if kind == "choice" or key in ("parallelism.sequence", "training.compile"):
        from memcheck.live.choices import listed

        return listed(key)[-1]
    named = {"flag": True, "number": 3, "text": "1.2", "list": ["a"], "model": "qwen2.5-7b", "gpu": "h200"}
    return named[kind]


@pytest.mark.parametrize("key", ["training.attention", "hardware.nodes", "parallelism.gradient_sync", "description"])
def test_a_removed_key_is_gone(key: str) -> None:
    """Its line and nothing else, so that the default counts again."""
    document = document_of(PLAIN)
    if stated_value(document.values, key) is None:
        assert moved(document, {key: None}) == ()
        return
    text = edited(PLAIN, moved(document, {key: None})[0].edits).decode()
    lost = [line for line in PLAIN.decode().splitlines() if line not in text.splitlines()]
    assert len(lost) == 1
    assert lost[0].lstrip().startswith(key.rpartition(".")[2])


def test_keys_of_braces_are_set_and_removed() -> None:
    """A mapping on one line stays on one line."""
    data = b"memcheck: 1\nmodel: gpt2\nhardware: {gpu: h100-80gb, nodes: 2}\ntraining: {micro_batch_size: 1, sequence_length: 8}\n"
    document = document_of(data)

    def after(changes: dict[str, object]) -> str:
        return edited(data, moved(document, changes)[0].edits).decode().splitlines()[2]

    assert after({"hardware.gpus_per_node": 4}) == "hardware: {gpu: h100-80gb, gpus_per_node: 4, nodes: 2}"
    assert after({"hardware.host_memory_gib": 64}) == "hardware: {gpu: h100-80gb, nodes: 2, host_memory_gib: 64}"
    assert after({"hardware.nodes": None}) == "hardware: {gpu: h100-80gb}"
    both = {"hardware.nodes": None, "hardware.gpus_per_node": 2}
    assert after(both) == "hardware: {gpu: h100-80gb, gpus_per_node: 2}"


def test_line_ends_comments_and_order_are_kept() -> None:
    """A new key stands where the schema has it, below the comment of its neighbour, with the file's own line ends."""
    data = b"memcheck: 1\r\nmodel: gpt2\r\n# where it runs\r\nhardware:\r\n  # ours\r\n  gpu: h200\r\ntraining:\r\n  micro_batch_size: 1\r\n  sequence_length: 8"
    changes = {"training.optimizer": "sgd", "name": "x", "parallelism.tensor": 2, "policy.fail_above": 0.9}
    text = edited(data, moved(document_of(data), changes)[0].edits).decode()
    assert text == (
        "memcheck: 1\r\nname: x\r\nmodel: gpt2\r\n# where it runs\r\nhardware:\r\n  # ours\r\n  gpu: h200\r\n"
        "parallelism:\r\n  tensor: 2\r\n\r\ntraining:\r\n  micro_batch_size: 1\r\n  sequence_length: 8\r\n"
        "  optimizer: sgd\r\n\r\npolicy:\r\n  fail_above: 0.9"
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a: &a {micro_batch_size: 1, sequence_length: 8}\n", "training.micro_batch_size"),
        ("", "no..key"),
        ("", ""),
    ],
)
def test_a_key_without_a_place_is_refused(text: str, key: str) -> None:
    """What comes through an alias may be meant for others, too; the reason is said."""
    training = "training: *a\n" if text else "training: {micro_batch_size: 1, sequence_length: 8}\n"
    document = document_of(f"memcheck: 1\nmodel: gpt2\nhardware: {{gpu: h200}}\n{text}{training}".encode())
    with pytest.raises(UsageError) as caught:
        moved(document, {key: 4})
    assert caught.value.help


def test_every_key_of_the_format_is_a_field_or_a_mapping_of_fields() -> None:
    """Nothing of a plan's sections is left out; a plan's own words and other models are set in the text."""
    covered = set(forms())
    left = [
        key
        for key in every_key()
        if key.partition(".")[0] in ("hardware", "parallelism", "training", "inference", "policy")
        and not any(each == key or each.startswith(f"{key}.") for each in covered)
        and key.rpartition(".")[0] not in covered
    ]
    assert [key for key in left if not key.startswith(("training.teacher", "training.options"))] == []
    assert all(each.label and each.told for key, each in forms().items() if key != "model")


def test_values_say_where_they_come_from() -> None:
    """Stated, assumed with the reason, or the format's own default; and the line of what is stated."""
    session = Session()
    replies = {
        each["step"]: each
        for each in session.handle({"id": 1, "do": "answer", "path": "plan.yaml", "text": PLAIN.decode()})
    }
    fields = replies["form"]["fields"]
    assert isinstance(fields, dict)
    assert (fields["training.micro_batch_size"]["origin"], fields["training.micro_batch_size"]["value"]) == (
        "stated",
        1,
    )
    line = fields["training.micro_batch_size"]["place"]["line"]
    assert PLAIN.decode().splitlines()[line - 1].strip() == "micro_batch_size: 1"
    assert fields["training.method"]["origin"] == "assumed"
    assert fields["training.method"]["why"]
    assert (fields["parallelism.tensor"]["origin"], fields["parallelism.tensor"]["value"]) == ("default", 1)
    (values,) = (
        each
        for each in session.handle({"id": 2, "do": "choices", "keys": ["training.loss", "nobody"]})
        if each["step"] == "choices"
    )
    assert isinstance(values["choices"], dict)
    assert list(values["choices"]) == ["training.loss"]


def test_set_replies_with_edits_and_the_answer() -> None:
    """The edits give the text that was answered, and the next answer leaves out what is the same."""
    session = Session()
    list(session.handle({"id": 1, "do": "answer", "path": "plan.yaml", "text": PLAIN.decode()}))
    change = {"id": 2, "do": "set", "changes": {"training.micro_batch_size": 2}, "since": 1}
    replies = {each["step"]: each for each in session.handle(change)}
    (file,) = replies["first"]["edits"]  # type: ignore[misc]
    (edit,) = file["edits"]
    lines = PLAIN.decode().splitlines()
    at = edit["start"]["line"] - 1
    lines[at] = lines[at][: edit["start"]["character"]] + edit["text"] + lines[at][edit["end"]["character"] :]
    assert session.workspace.data("plan.yaml").decode().splitlines() == lines
    fields = replies["form"]["fields"]
    assert isinstance(fields, dict)
    assert "training.micro_batch_size" in fields
    assert "hardware.gpu" not in fields
    again = {each["step"]: each for each in session.handle({**change, "id": 3, "since": 2})}
    assert again["first"]["edits"] == []
    assert (again["first"]["sections"], again["form"]["fields"], again["choices"]["choices"]) == ({}, {}, {})


def test_a_form_is_made_of_any_text() -> None:
    """Values of a wrong kind stand in the form as they are."""
    text = (
        b"memcheck: 1\nmodel: [1]\nhardware: 3\ntraining: {lora: [], optimizer: {name: {}}}\nparallelism: {tensor: x}\n"
    )
    document = document_of(text)
    result = PlanResult(path="plan.yaml", document=0, name="x", status="error")
    made = form(document, result, Positions(text.decode()))
    assert made.fields["parallelism.tensor"].value == "x"
    for key in FINITE:
        choices(key, Choosing(document))
