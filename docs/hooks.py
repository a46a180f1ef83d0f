"""Pictures of results/ in the documentation site, which lie beside docs/ in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "results"


def on_files(files: Files, config: Any) -> Files:
    """Add the picture of every figure to the site."""
    for path in sorted(RESULTS.glob("*/laptop*.png")):
        place = f"results/{path.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that leave docs/ for results/ stay inside the site."""
    return markdown.replace("](../../results/", "](../results/")
