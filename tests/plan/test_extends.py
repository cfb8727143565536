from __future__ import annotations

import os

import pytest

from memcheck.plan.read import load_documents, read_plan

BASE = """\
model: llama-3.1-8b
hardware: {gpu: h100-80gb, nodes: 2}
training:
  micro_batch_size: 1
  sequence_length: 4096
  freeze: [embed, head]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write files of a repository, and stand in its root."""
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repo")

    def write(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / "repo" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".yaml").write_text(text)

    return write


def load(path: str):
    with open(path, "rb") as file:
        (document,) = load_documents(path, file.read())
    return document


def broken(path: str):
    (finding,) = load(path).findings
    assert (finding.code, finding.name, finding.pointer) == ("MEM006", "broken-extends", "/extends")
    return finding


def test_a_plan_is_merged_over_its_base(write):
    """Mappings are joined key by key, lists and scalars are replaced, and the plan wins."""
    write(base=BASE, plan="memcheck: 1\nextends: ./base.yaml\nhardware: {nodes: 4}\ntraining: {freeze: [norm]}\n")
    document = load("plan.yaml")
    assert document.findings == ()
    assert document.values == {
        "memcheck": 1,
        "extends": "./base.yaml",
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100-80gb", "nodes": 4},
        "training": {"micro_batch_size": 1, "sequence_length": 4096, "freeze": ["norm"]},
    }
    plan, findings = read_plan(document)
    assert findings == []
    assert plan is not None
    assert (plan.hardware.nodes, plan.extends) == (4, "./base.yaml")


def test_every_value_is_placed_in_the_file_that_states_it(write):
    """What the base states is located in the base, with a note; what the plan states is located in the plan."""
    write(base=BASE, plans__plan="memcheck: 1\nextends: ../base.yaml\nhardware: {nodes: 4}\n")
    document = load("plans/plan.yaml")
    gpu, nodes = document.marks["/hardware/gpu"], document.marks["/hardware/nodes"]
    assert gpu.value == ("base.yaml", (2, 17, 2, 26), "from base.yaml")
    assert gpu.key is not None
    assert gpu.key.path == "base.yaml"
    assert gpu.used_at is not None
    assert (gpu.used_at.path, gpu.used_at.span.line) == ("plans/plan.yaml", 2)
    assert (nodes.value.path, nodes.value.note, nodes.used_at) == ("plans/plan.yaml", "", None)
    assert document.locate("/training").path == "base.yaml"
    assert document.locate("").path == "plans/plan.yaml"
    assert document.sources["base.yaml"][0] == "model: llama-3.1-8b"


def test_a_wrong_value_in_the_base_is_reported_there(write):
    """The finding names the base's line, so that it is mended once."""
    write(base=BASE.replace("4096", "128k"), plan="memcheck: 1\nextends: base.yaml\n")
    plan, findings = read_plan(load("plan.yaml"))
    (finding,) = findings
    assert plan is None
    assert (finding.location.path, finding.location.span.line) == ("base.yaml", 5)
    assert finding.location.note == "from base.yaml"
    assert finding.fix == ()


def test_what_neither_states_is_missing(write):
    """A plan with its base has to be complete."""
    write(base="hardware: {gpu: h100-80gb}\n", plan="memcheck: 1\nextends: base.yaml\nmodel: a\n")
    _, (finding,) = read_plan(load("plan.yaml"))
    assert (finding.code, finding.message) == ("MEM012", "a plan needs one of `training` or `inference`")


def test_bases_extend_bases(write):
    """A chain is followed; each value is located in the file of the chain that states it."""
    write(
        root="model: llama-3.1-8b\nhardware: {gpu: a100-40gb}\npolicy: {fail_above: 80%}\n",
        mid="extends: root.yaml\nhardware: {nodes: 2}\npolicy: {warn_above: 70%}\n",
        plan="memcheck: 1\nextends: mid.yaml\npolicy: {waste_below: 10%}\n",
    )
    document = load("plan.yaml")
    assert document.values["policy"] == {"fail_above": "80%", "warn_above": "70%", "waste_below": "10%"}
    assert document.values["extends"] == "mid.yaml"
    places = {name: document.marks[f"/policy/{name}"].value.path for name in document.values["policy"]}
    assert places == {"fail_above": "root.yaml", "warn_above": "mid.yaml", "waste_below": "plan.yaml"}
    assert document.marks["/hardware/gpu"].value.note == "from root.yaml"
    assert document.marks["/model"].value.note == "from root.yaml"


def test_anchors_of_a_base_keep_their_provenance(write):
    """A value that a merge key brought into the base says both."""
    write(base="parallelism: &p {tensor: 2}\npolicy:\n  <<: *p\n", plan="memcheck: 1\nextends: base.yaml\n")
    mark = load("plan.yaml").marks["/policy/tensor"]
    assert mark.value.note == "from base.yaml, set at line 1 through `<<: *p`"
    assert mark.used_at is not None
    assert (mark.used_at.path, mark.used_at.span.line) == ("base.yaml", 3)


def test_paths_in_a_base_are_relative_to_it(write):
    """A base in another folder means the config beside itself."""
    write(
        shared__base="model: {config: ./config.json}\nsource: {axolotl: a.yml}\n",
        plans__plan="memcheck: 1\nextends: ../shared/base.yaml\n",
    )
    values = load("plans/plan.yaml").values
    assert values["model"] == {"config": "../shared/config.json"}
    assert values["source"] == {"axolotl": "../shared/a.yml"}


def test_each_document_extends_for_itself(write):
    """In a file of several plans, one may extend what another does not."""
    write(base=BASE)
    first, second = load_documents("plans.yaml", b"memcheck: 1\nextends: base.yaml\n---\nmemcheck: 1\nmodel: a\n")
    assert first.values["model"] == "llama-3.1-8b"
    assert second.values == {"memcheck": 1, "model": "a"}


def test_standard_input_extends_from_the_working_directory(write):
    """A plan without a file of its own lies, as far as paths go, where the command runs."""
    write(base=BASE)
    (document,) = load_documents("-", b"memcheck: 1\nextends: base.yaml\n")
    assert document.values["model"] == "llama-3.1-8b"


@pytest.mark.parametrize("names", [("plan",), ("plan", "a"), ("plan", "a", "b")])
def test_a_circle_is_found(write, names):
    """Plans that extend each other are an error that names the circle."""
    following = [*names[1:], names[0]]
    write(**{name: f"memcheck: 1\nextends: {other}.yaml\n" for name, other in zip(names, following, strict=True)})
    finding = broken("plan.yaml")
    assert "extends itself" in finding.message
    assert all(f"{name}.yaml" in finding.message for name in names)


def test_a_plan_beside_a_circle_is_no_part_of_it(write):
    """Only the files that form the circle are named."""
    write(plan="memcheck: 1\nextends: a.yaml\n", a="extends: b.yaml\n", b="extends: a.yaml\n")
    finding = broken("plan.yaml")
    assert finding.message == "the plan extends itself: a.yaml -> b.yaml -> a.yaml"
    assert (finding.location.path, finding.location.span.line) == ("b.yaml", 1)


def test_a_base_outside_of_the_repository_is_refused(write, tmp_path):
    """Neither dots nor a symbolic link lead out of the repository, and nothing there is read."""
    (tmp_path / "secret.yaml").write_text("model: a\n")
    write(plans__plan="memcheck: 1\nextends: ../../secret.yaml\n", plans__link="memcheck: 1\nextends: inside.yaml\n")
    os.symlink(tmp_path / "secret.yaml", "plans/inside.yaml")
    for path in ("plans/plan.yaml", "plans/link.yaml"):
        assert "outside the repository" in broken(path).message
        assert list(load(path).sources) == [path]


def test_without_a_repository_the_folder_of_the_plan_is_the_limit(tmp_path, monkeypatch):
    """A plan in no repository extends only its neighbours."""
    folder = tmp_path / "plans"
    folder.mkdir()
    (tmp_path / "base.yaml").write_text(BASE)
    (folder / "base.yaml").write_text(BASE)
    (folder / "up.yaml").write_text("memcheck: 1\nextends: ../base.yaml\n")
    (folder / "beside.yaml").write_text("memcheck: 1\nextends: base.yaml\n")
    monkeypatch.chdir(folder)
    assert "outside the plan's folder" in broken("up.yaml").message
    assert load("beside.yaml").findings == ()


@pytest.mark.parametrize(
    ("name", "base", "words"),
    [
        ("missing.yaml", "", "does not exist"),
        (".", "", "is not a file"),
        ("/etc/passwd", "", "not a relative path"),
        ("https://example.org/base.yaml", "", "not a relative path"),
        ("base.yaml", "", "is empty"),
        ("base.yaml", "a: 1\n---\nb: 2\n", "holds 2 documents"),
        ("base.yaml", "- a\n", "is not a mapping"),
        ("base.yaml", "a: [\n", "cannot be read: a value is missing here"),
        ("base.yaml", "a: \0\n", "cannot be read: the file is binary"),
        ("base.yaml", "a: *b\n", "repeats nothing"),
    ],
)
def test_a_base_that_cannot_be_used_is_an_error_at_extends(write, name, base, words):
    """Whatever is wrong with the base, the finding points at `extends` and says what."""
    write(base=base, plan=f"memcheck: 1\nextends: {name}\n")
    finding = broken("plan.yaml")
    assert words in finding.message
    assert (finding.location.path, finding.location.span.line) == ("plan.yaml", 2)


def test_an_unreadable_base_is_an_error(write):
    """Permissions are named."""
    write(base=BASE, plan="memcheck: 1\nextends: base.yaml\n")
    os.chmod("base.yaml", 0)
    if os.access("base.yaml", os.R_OK):
        pytest.skip("permissions do not bind this user")
    assert "cannot be read" in broken("plan.yaml").message


def test_long_chains_are_refused(write):
    """A chain has an end."""
    write(**{f"p{i}": f"memcheck: 1\nextends: p{i + 1}.yaml\n" for i in range(40)}, p40=BASE)
    assert "more than 16" in broken("p0.yaml").message


def test_a_broken_base_does_not_hide_the_plans_own_mistakes(write):
    """What the plan itself states is still checked, and nothing is called missing that the base might hold."""
    write(plan="memcheck: 1\nextends: missing.yaml\nhardware: {gpu: h100-80gb, nodes: -1}\n")
    plan, findings = read_plan(load("plan.yaml"))
    assert plan is None
    assert [finding.code for finding in findings] == ["MEM006", "MEM014"]


def test_a_duplicate_in_the_base_is_reported_in_the_base(write):
    """What reading found in the base belongs to the plan's findings."""
    write(base=BASE + "model: other\n", plan="memcheck: 1\nextends: base.yaml\n")
    (finding,) = load("plan.yaml").findings
    assert (finding.code, finding.location.path) == ("MEM003", "base.yaml")


@pytest.mark.parametrize("value", ["5", "[base.yaml]", '""', "~"])
def test_extends_of_another_type_is_left_to_the_schema(write, value):
    """A value that is no path is a wrong type like any other."""
    write(plan=f"memcheck: 1\nextends: {value}\nmodel: a\nhardware: {{gpu: h100-80gb}}\n")
    document = load("plan.yaml")
    assert document.findings == ()
    _, findings = read_plan(document)
    assert "/extends" in [finding.pointer for finding in findings]
