"""Write requirements.txt: the very files that the tests run with, by their hashes.

`python -m benchmarks.locked_requirements` asks pip which files an installation takes here, with the
versions of constraints.txt. torch is its build for processors, which any machine can run.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEAD = """\
# The very files that the tests run with, on {system} with Python {python}. To install them:
#   pip install --require-hashes -r requirements.txt
#   pip install --no-deps -e .
# torch is its build for processors. Written by `make lock` from the versions in constraints.txt.
"""


def report() -> dict[str, Any]:
    """What pip would install, in its own words."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-"]
    options = ["--ignore-installed", "-c", "constraints.txt", ".[dev]"]
    done = subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def hashes(parts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The hash of the file of every package, by name and version; folders have none."""
    return {
        f"{_plain(part['metadata']['name'])}=={part['metadata']['version'].partition('+')[0]}": (
            part["download_info"]["archive_info"]["hashes"]["sha256"]
        )
        for part in parts
        if "archive_info" in part["download_info"]
    }


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def written(packages: Mapping[str, str], system: str, python: str) -> str:
    """The text of requirements.txt."""
    lines = [f"{name} --hash=sha256:{packages[name]}\n" for name in sorted(packages)]
    return HEAD.format(system=system, python=python) + "".join(lines)


def main() -> None:
    system = f"{platform.system()} {platform.machine()}"
    python = ".".join(platform.python_version_tuple()[:2])
    text = written(hashes(report()["install"]), system, python)
    (ROOT / "requirements.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
