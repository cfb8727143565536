"""Build the site: the pages of the repository, one page per model and per GPU, a search, and ``llms.txt``.

``python -m docs.site.build --out FOLDER`` needs the extra ``docs``. ``--models`` limits the pages of models to some
names; without it there is one for every model of the catalog, which takes minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from docs.site.models_and_gpus import gpu_index, gpu_page, model_index, model_page, needs_of
from memcheck.catalog.names import gpu_names, model_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "examples/**/*.md", "benchmarks/*.md")
"""What is a page, or shown on one."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
"""A link of Markdown: its text, its file, its place."""


def main(arguments: list[str]) -> int:
    """Build the site into a folder; returns mkdocs' exit code, which is not 0 where a link is dead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder that takes the site")
    parser.add_argument("--models", type=lambda text: text.split(","), help="names of models, with commas")
    options = parser.parse_args(arguments)
    models = options.models or model_names()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder) / "pages"
        copy_pages(stage)
        write_catalog(stage, models)
        (stage / "llms.txt").write_text(llms_text(stage), encoding="utf-8")
        shutil.copy(ROOT / "docs" / "site" / "mkdocs.yml", folder)
        mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", "mkdocs.yml"]
        environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an announcement of the theme's makers
        command = [*mkdocs, "--site-dir", options.out.resolve()]
        return subprocess.run(command, cwd=folder, env=environ, check=False).returncode


def copy_pages(stage: Path) -> None:
    """Copy the repository's pages, in their folders, so that their links lead where they lead in the repository.

    A link to a file that is no page (a plan, a schema, code) becomes the file's name alone.
    """
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern) if "site" not in path.relative_to(ROOT).parts}
    for page in pages:
        copied = stage / page.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix != ".md":
            shutil.copy(page, copied)
            continue
        text = LINK.sub(lambda link, page=page: kept_link(link, page, pages), page.read_text(encoding="utf-8"))
        copied.write_text(text, encoding="utf-8")
    for folder in (stage, stage / "docs"):
        (folder / "README.md").replace(folder / "index.md")


def kept_link(link: re.Match[str], page: Path, pages: set[Path]) -> str:
    """The link as it stands on the site: as it is to another page or the web, else its text alone."""
    text, file, _ = link.groups()
    if "://" in file or file.startswith("mailto:"):
        return link[0]
    target = (page.parent / file).resolve()
    if target in (ROOT / "README.md", ROOT / "docs" / "README.md"):
        return link[0].replace("README.md", "index.md")
    if target in pages:
        return link[0]
    if (target / "README.md") in pages:
        return link[0].replace(file, file.rstrip("/") + "/README.md")
    return text


def write_catalog(stage: Path, models: list[str]) -> None:
    """Write the pages of models and GPUs, with the tables that the engine computes on all cores."""
    with ProcessPoolExecutor() as pool:
        needs = {key: need for found in pool.map(needs_of, models) for key, need in found.items()}
    for folder, pages in (
        ("models", {name: model_page(name, needs) for name in models} | {"index": model_index(models)}),
        ("gpus", {name: gpu_page(name, needs) for name in gpu_names()} | {"index": gpu_index()}),
    ):
        (stage / folder).mkdir()
        for name, text in pages.items():
            (stage / folder / f"{name}.md").write_text(text, encoding="utf-8")


def llms_text(stage: Path) -> str:
    """The list of pages for language models (llmstxt.org): each page's address and first heading."""
    lines = ["# memcheck", "", "> Predicts the peak memory of every GPU of an LLM job before it is queued.", ""]
    for title, folder in (("Documentation", "docs"), ("Models", "models"), ("GPUs", "gpus")):
        lines += [f"## {title}", ""]
        for page in sorted((stage / folder).rglob("*.md")):
            heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            path = page.relative_to(stage).with_suffix("").as_posix().removesuffix("index").removesuffix("README")
            lines.append(f"- [{heading[1] if heading else path}]({path}{'' if path.endswith('/') else '/'})")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
