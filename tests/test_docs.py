"""The documentation site: every page is in it, every public name is explained, examples run."""

import re
from pathlib import Path

import pytest
import yaml

import icgd

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
EXECUTED = [
    "tutorials/theorem.md",
    "tutorials/known_algorithm.md",
    "tutorials/own_table.md",
    "tutorials/pytorch.md",
    "tutorials/own_construction.md",
    "proofs.md",
    "problems/own_functions.md",
    "problems/shortcuts_and_norms.md",
]
"""Pages whose examples run here; those of other pages run in the tests of what they explain."""


def pages_of(entry) -> list[str]:
    """All files that a part of the navigation names."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages_of(part)]


def test_every_page_and_every_notebook_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")]
    assert sorted(pages_of(config["nav"])) == sorted(PAGES + notebooks)


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: ([\w.]+)$", text, flags=re.MULTILINE)
    homes = [f"{home}.{name}" for name, home in icgd._HOME_OF.items()]
    assert sorted(named) == sorted(homes)


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    code = r"```.*?```|`[^`\n]*`|^    .*?$"
    text = re.sub(code, "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    files = [target for target in targets if not target.startswith(("http://", "https://"))]
    missing = [file for file in files if not ((DOCS / page).parent / file).exists()]
    assert missing == []


def test_the_gallery_shows_every_picture_and_every_example():
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)\n\n([^\n]+)", text)
    drawings = [path for path in (DOCS / "images").glob("*") if path.suffix in {".png", ".svg"}]
    drawings = [p for p in drawings if p.suffix == ".svg" or not p.with_suffix(".svg").exists()]
    figures = (ROOT / "results").glob("*/laptop.png")
    pictures = [DOCS / picture for picture, _ in shown]
    wanted = {path.resolve() for path in (*drawings, *figures)}
    assert {path.resolve() for path in pictures} == wanted
    assert len(pictures) == len(set(pictures))
    assert all(re.search(r"\]\([\w/]+\.md\)", caption) for _, caption in shown)
    linked = set(re.findall(r"\]\(\.\./examples/([\w.]+)\)", text))
    assert linked == {path.name for path in (ROOT / "examples").glob("*.*")}


@pytest.mark.parametrize("page", EXECUTED)
def test_the_examples_of_a_tutorial_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(example, names)
    assert capsys.readouterr().out
    if page.endswith("own_construction.md"):
        compiled, report = names["compiled"], names["report"]
        assert report.verdict.holds
        assert report.step_errors.max() <= 1e-15
        compiled.save("own.safetensors")
        assert icgd.load("own.safetensors") == compiled  # of a construction that icgd does not know
    if page.endswith("pytorch.md"):
        assert names["report"].verdict.holds
        assert 0 < names["distance"] < 1e-3
        assert 0 < names["gap"] < 1e-2
        assert names["shuffled"].network.depth == 4  # as the page says
        assert len(names["compiled"].program.block) == 11  # as the page says
    if page.endswith("shortcuts_and_norms.md"):
        assert names["report"].verdict.holds
        program = names["compiled"].program
        assert (len(program.block), len(program.prediction)) == (14, 7)  # as the page says
        assert program.layout.width == 703
    if page.endswith("theorem.md"):
        report, certificate = names["report"], names["compiled"].certificate()
        assert report.verdict.holds
        bounds = (certificate.domain_step, certificate.paper_step)
        assert report.step_errors.max() < report.step_bounds.max() < bounds[0] < bounds[1]
        assert bounds[1] > 1e4 * report.step_errors.max()  # as the page says
        ratios = [a / b for a, b in zip(names["proved"], names["proved"][1:], strict=False)]
        assert all(3 < ratio < 6 for ratio in ratios)  # the page says about 4
