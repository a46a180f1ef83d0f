"""Pictures of results/ and files of examples/ in the site; both lie beside docs/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN = {"results": "*/laptop*.png", "examples": "*.*"}
"""The files of each folder that the site holds."""


def on_files(files: Files, config: Any) -> Files:
    """Add the picture of every figure and the text of every example to the site."""
    for folder, pattern in SHOWN.items():
        for path in sorted((ROOT / folder).glob(pattern)):
            place = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links that leave docs/ for these folders stay inside the site."""
    back = "../" * page.file.src_uri.count("/")
    for folder in SHOWN:
        markdown = markdown.replace(f"](../{back}{folder}/", f"]({back}{folder}/")
    return markdown
