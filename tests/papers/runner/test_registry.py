import json
from dataclasses import asdict

import pytest

from icgd.errors import UnknownNameError
from icgd_papers.registry import REPRODUCTIONS, reproduction_named
from tests.papers.committed import committed

CHENG = [f"cheng-fig{number}" for number in range(1, 7)]
WU = [
    *(f"wu-fig{number}" for number in range(1, 6)),
    "wu-flops",
    "wu-mechanism",
    "wu-choices",
    "wu-score",
]
WANG = ["wang-resources", "wang-in-context", "wang-rates"]

COT = ["cot-cost", "cot-fig2"]


def test_every_figure_of_the_papers_is_there():
    controls = ["cheng-losses", "cheng-curvature"]
    own = ["learnt-constructed", "meta-gradients", "meta-learning"]
    assert list(REPRODUCTIONS) == [*CHENG, *controls, *WANG, *WU, *COT, *own]
    for name, reproduction in REPRODUCTIONS.items():
        assert reproduction_named(name) is reproduction
    for name in CHENG:
        assert f"Figure {name[-1]}," in REPRODUCTIONS[name].place


def test_an_unknown_figure_is_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError) as caught:
        reproduction_named("cheng-fig7")
    assert str(caught.value) == (
        "Unknown figure 'cheng-fig7'; known are cheng-fig1, cheng-fig2, cheng-fig3, cheng-fig4, "
        "cheng-fig5, cheng-fig6, cheng-losses, cheng-curvature, wang-resources, wang-in-context, "
        f"wang-rates, {', '.join([*WU, *COT])}, learnt-constructed, meta-gradients, "
        "meta-learning. Did you mean 'cheng-fig6'?"
    )


@pytest.mark.parametrize("name", CHENG)
def test_the_papers_preset_has_the_papers_sizes(name):
    for run in reproduction_named(name).studies("paper", seed=0):
        budget = run.budget
        assert (budget.batch_size, budget.resample_every, budget.n_seeds) == (30_000, 10, 3)
        assert not budget.averages_labels
    for run in reproduction_named(name).studies("smoke", seed=0):
        assert run.budget.n_steps * run.budget.batch_size <= 40


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_committed_results_are_those_of_the_laptop_preset(name):
    """A reader who runs the preset gets what the page shows."""
    numbers = committed(name)
    studies = reproduction_named(name).studies("laptop", numbers["seed"])
    budgets = [asdict(budget) for budget in dict.fromkeys(study.budget for study in studies)]
    assert json.loads(json.dumps(budgets)) == numbers["budgets"]
