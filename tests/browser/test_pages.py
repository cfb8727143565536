"""The HTML report in a real browser: Chromium, by tests/browser/look.mjs. Skips itself where that cannot run."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.report.html import render
from memcheck.report.html.shell import BACKGROUNDS
from memcheck.rules.result import Report
from tests.report import samples
from tests.report.failing import PLANS, judged
from tests.report.forwarded import forwarded
from tests.report.test_html import FIVE

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
JUDGED = {(1280, "light"), (390, "dark")}
"""What axe-core looks at, which takes most of the time: each width, and each scheme."""
SWEEPS = {
    "sweep": ("training.micro_batch_size=1,2,4,8", "training.sequence_length=2048,8192", "parallelism.zero_stage=1,3"),
    "one-key": ("training.micro_batch_size=1..16",),
    "two-keys": ("training.micro_batch_size=1,2,4,8,16,32", "training.sequence_length=512,1024,2048,4096,8192,16384"),
    "many-points": ("training.gradient_accumulation_steps=1..30", "training.micro_batch_size=1..30"),
}
"""Heat maps: of one key, of two, of two with a third, and of more columns than any screen has."""
PAGES = ("five", "estimates", "made", "evil", "failing", *SWEEPS)
LEAST_RULES = 90
"""Rules of axe-core; fewer mean that it did not load."""

pytestmark = pytest.mark.browser


def needed() -> list[str]:
    """Browser and node; skips the test where something is missing."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    node = shutil.which("node")
    missing = [name for name, found in (("Chromium", browser), ("node", node)) if found is None]
    if not (HERE.parents[1] / "site" / "node_modules" / "axe-core").exists():
        missing.append("the packages of site/package.json (npm ci --prefix site)")
    if browser is None or node is None or missing:
        pytest.skip(f"not at hand: {', '.join(missing)}")
    return [node, str(HERE / "look.mjs"), browser]


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int, str], dict]:
    """What the browser saw, by page, width and colour scheme."""
    command = needed()
    folder = tmp_path_factory.mktemp("pages")
    examples = [str(HERE.parents[1] / "examples" / f"{name}.yaml") for name in FIVE]
    files = {name: folder / f"{name}.html" for name in PAGES}
    assert main(["check", *examples, "--exit-zero", "--format", f"html={files['five']}"]) == 0
    assert main(["estimate", examples[0], examples[-1], "--format", f"html={files['estimates']}"]) == 0
    for name, axes in SWEEPS.items():
        grid = [part for axis in axes for part in ("--set", axis)]
        assert main(["sweep", examples[0], *grid, "--format", f"html={files[name]}"]) == 0
    files["made"].write_text(render(forwarded()), encoding="utf-8")
    files["failing"].write_text(render(Report("0.1.0", tuple(judged(name) for name in PLANS))), encoding="utf-8")
    files["evil"].write_text(render(samples.evil()), encoding="utf-8")
    done = subprocess.run(
        [*command, *map(str, files.values())], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return {(Path(look["file"]).stem, look["width"], look["scheme"]): look for look in json.loads(done.stdout)}


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("page", PAGES)
def test_page_is_clean(looks: dict[tuple[str, int, str], dict], page: str, width: int, scheme: str) -> None:
    """Nothing on the console, no request, nothing wider than the window, no objection of axe-core's."""
    look = looks[page, width, scheme]
    assert look["messages"] == []
    assert look["requests"] == []
    assert look["overflow"]["scroll"] <= look["overflow"]["client"] == width
    assert look["overflow"]["wide"] == []
    assert look["rules"] >= LEAST_RULES
    if (width, scheme) in JUDGED:
        assert look["axe"] == []


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_reader_chooses_light_or_dark(looks: dict[tuple[str, int, str], dict], width: int, scheme: str) -> None:
    """The page has the background of the palette's side that the system asks for."""
    colour = getattr(BACKGROUNDS["page"], scheme)
    parts = ", ".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    assert looks["made", width, scheme]["background"] == f"rgb({parts})"


def test_looking_finds_what_is_wrong(tmp_path: Path) -> None:
    """A page with a script error, a request, a wide box and a picture without text is found out on every count."""
    command = needed()
    page = tmp_path / "bad.html"
    page.write_text(
        '<!DOCTYPE html><title>x</title><p style="width:3000px">wide</p><img src="http://192.0.2.1/x.png">'
        "<script>throw new Error('mine')</script>",
        encoding="utf-8",
    )
    done = subprocess.run([*command, str(page)], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    for look in json.loads(done.stdout):
        assert any("mine" in message for message in look["messages"])
        assert look["requests"] == ["http://192.0.2.1/x.png"]
        assert look["overflow"]["scroll"] > look["width"]
        assert look["overflow"]["wide"]
        if (look["width"], look["scheme"]) in JUDGED:
            assert any(found.startswith("image-alt") for found in look["axe"])
