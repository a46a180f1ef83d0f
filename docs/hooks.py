"""Pictures of results/, examples and notebooks in the site; all of them lie beside docs/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN = {"results": "*/laptop*.png", "examples": "*.*"}
"""The files of each folder that the site holds."""


def on_files(files: Files, config: Any) -> Files:
    """Add the picture of every figure, every example, and a page for each notebook."""
    for folder, pattern in SHOWN.items():
        for path in sorted((ROOT / folder).glob(pattern)):
            place = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, place, abs_src_path=str(path)))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=as_page(path)))
    return files


def as_page(notebook: Path) -> str:
    """Return the text and the code of a notebook as Markdown, and where the file is."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    parts.insert(1, f"[Download the notebook](../examples/{notebook.name}), and run it.")
    picture = f"images/example_{notebook.stem}.png"
    if (ROOT / "docs" / picture).exists():
        parts.append(f"![What the notebook draws](../{picture})")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Keep links to these folders inside the site, and typeset blocks of mathematics.

    GitHub takes a backslash out of `$$...$$`, but not out of a fence.
    """
    markdown = re.sub(r"^( *)```math\n(.*?)^ *```$", r"\1$$\n\2\1$$", markdown, flags=re.S | re.M)
    back = "../" * page.file.src_uri.count("/")
    for folder in SHOWN:
        markdown = markdown.replace(f"](../{back}{folder}/", f"]({back}{folder}/")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Let a click on a picture open it in full size."""
    return re.sub(r'(<img [^>]*?src="([^"]+)"[^>]*>)', r'<a href="\2">\1</a>', html)
