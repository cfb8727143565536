"""Plans as links: what is written is read, and damaged, newer, oversized and bombing links say so."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcheck import __version__
from memcheck.cli.app import run_app
from memcheck.config.find import Gate
from memcheck.configs.documents import load_plans
from memcheck.errors import MemcheckError
from memcheck.judge import check_file
from memcheck.live.link import (
    LARGEST,
    LARGEST_PAYLOAD,
    MOST_CHARACTERS,
    SAFE_CHARACTERS,
    LinkError,
    SharedPlan,
    read_link,
    shareable,
    warning,
    write_link,
)
from memcheck.live.protocol import Session

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAN = EXAMPLES / "llama-3.1-8b-fsdp-8xh100.yaml"


def packed(data: bytes, level: int = 9) -> str:
    """A payload of any bytes."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return "1." + base64.urlsafe_b64encode(packer.compress(data) + packer.flush()).decode().rstrip("=")


@pytest.mark.slow
@given(st.text(min_size=1), st.text(), st.integers(0, 9999))
@settings(max_examples=200)
def test_what_is_written_is_read(plan: str, compared: str, document: int) -> None:
    """Any text, with a second one, and with what an address stands before it."""
    shared = SharedPlan(plan=plan, compared=compared, document=document, version="0.1.0+x", section="memory")
    link = write_link(shared)
    assert link.isascii()
    assert link.startswith("#p=1.")
    assert read_link(link) == read_link("https://example.org/page/" + link) == read_link(link[1:]) == shared


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_plan_of_a_link_is_the_plan(path: Path) -> None:
    """The same figures without the files that it extends or takes values from; most links are short."""
    data = path.read_bytes()
    documents = load_plans(str(path), data)
    text, is_flat = shareable(str(path), data, documents)
    assert is_flat == (b"\nextends:" in data or b"\nsource:" in data)
    if is_flat:
        before, after = (
            check_file(name, each, Gate())[0] for name, each in ((str(path), data), ("p.yaml", text.encode()))
        )
        assert [each.estimate and each.estimate.needed_bytes for each in before] == [
            each.estimate and each.estimate.needed_bytes for each in after
        ]
    else:
        assert text.encode() == data
    assert len(write_link(SharedPlan(plan=text))) < SAFE_CHARACTERS


BOMB = packed(b"a" * (LARGEST + 1))


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("", "holds no plan"),
        ("https://example.org/", "holds no plan"),
        ("#d=1&x=2", "holds no plan"),
        ("#p=2.abc", "has format 2"),
        ("#p=999999.abc", "has format 999999"),
        ("#p=0.abc", "is damaged"),
        ("#p=", "is damaged"),
        ("#p=1.", "is damaged"),
        ("#p=1.a", "is damaged"),
        ("#p=1.a+b/", "is damaged"),
        ("#p=1.%41", "is damaged"),
        ("#p=" + packed(b"memcheck: 1")[:-2], "is damaged"),
        ("#p=" + packed(b"\xff\xfe"), "is damaged"),
        ("#p=1." + base64.urlsafe_b64encode(b"\x00" * 30).decode(), "is damaged"),
        ("#p=" + BOMB, "more than a plan of 256 KiB"),
        ("#p=1." + "A" * LARGEST_PAYLOAD, "more than a plan of 256 KiB"),
        ("#p=" + packed(b"x") + "&q=1.!", "is damaged"),
    ],
)
def test_a_link_that_cannot_be_read_says_why(link: str, message: str) -> None:
    """No other exception, and a help."""
    with pytest.raises(LinkError, match=message) as caught:
        read_link(link)
    assert caught.value.help


@pytest.mark.slow
def test_a_bomb_stays_small_in_memory() -> None:
    """64 MiB of zeros are a link of some kilobytes, of which no more than the limit comes into memory."""
    link = "#p=" + packed(b"\0" * 2**26)
    tracemalloc.start()
    with pytest.raises(LinkError):
        read_link(link)
    assert tracemalloc.get_traced_memory()[1] < 4 * LARGEST
    tracemalloc.stop()


@given(st.text(st.sampled_from("pqdvesx=&.#1ABCabc-_%\0é"), max_size=80))
def test_any_text_is_a_link_or_an_error(text: str) -> None:
    """Unknown parts are left alone, names that are none are empty."""
    try:
        found = read_link(text)
    except LinkError:
        return
    assert found.plan or found.example or "p=1." in text


def test_examples_are_named() -> None:
    """A link of the docs has a name instead of a plan."""
    assert read_link("#e=llama-3.1-8b-fsdp-8xh100&s=memory").example == "llama-3.1-8b-fsdp-8xh100"
    with pytest.raises(LinkError):
        read_link("#e=<script>")


def test_long_links_are_warned_of_and_refused() -> None:
    """Chat programs cut them; beyond that a file is the better way."""
    assert warning("#" * SAFE_CHARACTERS) == ""
    assert "chat programs" in warning("#" * (SAFE_CHARACTERS + 1))
    with pytest.raises(LinkError):
        warning("#" * (MOST_CHARACTERS + 1))
    with pytest.raises(LinkError, match="not Unicode"):
        write_link(SharedPlan(plan="\ud800"))
    assert write_link(SharedPlan(plan="x", section="\ud800<")) == write_link(SharedPlan(plan="x"))
    with pytest.raises(LinkError, match="up to 256 KiB"):
        write_link(SharedPlan(plan="x" * (LARGEST + 1)))


def test_the_command_prints_links_and_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fragment alone, or after the address of the configuration or of the option; and back."""
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_bytes(PLAN.read_bytes())
    assert run_app(["link", "plan.yaml"]) == 0
    fragment = capsys.readouterr().out.strip()
    assert fragment.startswith("#p=1.")
    assert fragment.endswith(f"&v={__version__}")
    Path("memcheck.toml").write_text('page-url = "https://example.org/page/"\n')
    assert run_app(["link", "plan.yaml"]) == 0
    assert capsys.readouterr().out.strip() == "https://example.org/page/" + fragment
    assert run_app(["link", "plan.yaml", "--base-url", "http://localhost:8000"]) == 0
    link = capsys.readouterr().out.strip()
    assert link == "http://localhost:8000" + fragment
    assert run_app(["link", "--read", link]) == 0
    assert capsys.readouterr().out == PLAN.read_text(encoding="utf-8")
    assert run_app(["link", "plan.yaml", "--compare", "plan.yaml"]) == 0
    assert read_link(capsys.readouterr().out.strip()).compared == PLAN.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["gone.yaml"],
        ["plan.yaml", "--base-url", "javascript:alert(1)"],
        ["--read", "#p=9.x"],
        ["plan.yaml", "--document", "7"],
    ],
)
def test_wrong_command_lines_are_refused(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 for what cannot be a link, and nothing is printed."""
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_bytes(PLAN.read_bytes())
    with pytest.raises(MemcheckError) as caught:
        run_app(["link", *arguments])
    assert caught.value.exit_code == 2


def test_the_page_gets_a_link_of_its_files() -> None:
    """A plan that extends another file of the workspace is written out."""
    files = {"base.yaml": PLAN.read_text(encoding="utf-8")}
    text = "memcheck: 1\nextends: base.yaml\nname: short\n"
    request = {"id": 1, "do": "link", "path": "plan.yaml", "text": text, "files": files, "section": "memory"}
    found = next(Session().handle(request))
    shared = read_link(str(found["fragment"]))
    assert (found["flattened"], found["warning"], shared.section) == (True, "", "memory")
    assert "extends" not in shared.plan
    assert check_file("p.yaml", shared.plan.encode(), Gate())[0][0].status == "passed"
