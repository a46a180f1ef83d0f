"""Files for the tests of the command line."""

from pathlib import Path

import icgd

PROBLEM = icgd.Problem(
    target=icgd.MLP((4, 3, 1)),
    loss="squared",
    update=icgd.GradientStep(step_size=0.1, box=3.0),
    domain=icgd.Domain(x=4.0, y=2.0),
)


def network_of(*widths: int) -> icgd.Problem:
    """A network of these widths with the squared loss."""
    return icgd.Problem(icgd.MLP(widths), "squared", PROBLEM.update, PROBLEM.domain)


TRAIN = """\
a,b,c,d,price
0.5,-1,2,0,1
1,0.25,-3,1,-0.5
-2,1,0,0.125,0.75
"""
NEW = """\
d,c,b,a
1,0,0.5,-1
0,0,0,0.25
"""


def compiled_run(n_steps: int = 2) -> icgd.Compiled:
    return icgd.compile(PROBLEM, "relu-stack", n_steps=n_steps, pieces=8)


def write_all(folder: Path) -> None:
    """The files that the help texts speak of."""
    compiled_run().save(folder / "run.safetensors")
    (folder / "train.csv").write_text(TRAIN)
    (folder / "new.csv").write_text(NEW)


def listing(folder: Path) -> list[str]:
    """Every file and folder below `folder`, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
