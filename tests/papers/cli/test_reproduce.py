import json
from dataclasses import replace

import pytest

from icgd_papers.cli import reproduce
from icgd_papers.registry import FIGURES
from tests.cli.files import listing


def test_the_list_names_every_figure_and_its_place(command):
    outcome = command("reproduce", "--list", "--json")
    listed = json.loads(outcome.stdout)
    assert [entry["figure"] for entry in listed] == list(FIGURES)
    assert listed[3]["where"] == "Figure 4, App. D"
    assert listed[1]["paper preset"] == "288 jobs, 470 core-hours"
    assert all("core" in entry["laptop preset"] for entry in listed)
    assert all("core" in entry["paper preset"] for entry in listed)
    table = command("reproduce", "--list").stdout
    assert "cheng-fig6" in table
    assert command("reproduce").stdout == table


def test_the_example_of_the_help_works(command, tmp_path):
    outcome = command(*command("reproduce", "--help").example())
    assert outcome.code == 0
    assert listing(tmp_path) == [
        "results",
        "results/cheng-fig3",
        "results/cheng-fig3/smoke.csv",
        "results/cheng-fig3/smoke.json",
        "results/cheng-fig3/smoke.png",
    ]
    assert "cheng-fig3: Figure 3, Section 4.5" in outcome.stdout
    assert "…" not in outcome.stdout  # the table fits 80 columns
    assert outcome.stdout.endswith("Saved smoke.json, smoke.csv, smoke.png in results/cheng-fig3\n")


def test_json_is_what_the_file_holds(command, tmp_path):
    arguments = ("reproduce", "cheng-fig3", "--preset", "smoke", "--seed", "3", "--json")
    data = json.loads(command(*arguments).stdout)
    assert data == json.loads((tmp_path / "results/cheng-fig3/smoke.json").read_text())
    assert {row["seed"] for row in data["rows"]} == {3}


def test_what_does_not_exist_is_refused_before_anything_is_trained(command, tmp_path):
    assert command("reproduce", "cheng-fgi1").refusal().endswith("Did you mean 'cheng-fig1'?")
    message = command("reproduce", "cheng-fig1", "--preset", "smok").refusal()
    assert message == (
        "Unknown preset 'smok'; known are smoke, laptop, paper. Did you mean 'smoke'?"
    )
    assert command("reproduce", "cheng-fig1", "--seed", "-1").refusal() == (
        "seed must be a whole number of at least 0, got -1."
    )
    assert command("reproduce", "cheng-fig3", "--preset", "smoke", "--workers", "0").refusal() == (
        "n_workers must be a whole number of at least 1, got 0."
    )
    assert command("reproduce", "cheng-fig3", "--seed", 2**32).refusal() == (
        "seed must be at most 4294967195, got 4294967296."
    )
    assert command("reproduce", "cheng-fig3", "cot-cost", "--only", "panel-a").refusal() == (
        "cot-cost has no panels to choose from. Leave out only."
    )
    assert listing(tmp_path) == []


def test_a_part_is_written_under_its_own_name(command, tmp_path):
    arguments = ("reproduce", "cheng-fig3", "--preset", "smoke", "--only", "panel-b")
    outcome = command(*arguments, "--device", "auto")
    assert outcome.stdout.endswith(
        "Saved smoke-panel-b.json, smoke-panel-b.csv, smoke-panel-b.png in results/cheng-fig3\n"
    )


def test_an_estimate_answers_at_once_and_does_nothing_else(command, tmp_path):
    outcome = command("reproduce", "wu-fig2", "--preset", "paper", "--estimate")
    assert (outcome.code, outcome.stdout) == (0, "")
    assert outcome.stderr.startswith("wu-fig2, paper: 45 jobs, about ")
    assert outcome.stderr.endswith(" core-hours.\n")
    assert listing(tmp_path) == []


def test_the_paper_preset_first_says_what_it_takes(command, monkeypatch):
    monkeypatch.setattr(reproduce, "run_jobs", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command("reproduce", "cheng-fig3", "--preset", "paper", "--only", "panel-a")


def test_ctrl_c_says_what_is_kept(command, tmp_path, monkeypatch):
    def interrupted(setting, job):
        if setting.panel == "b":
            raise KeyboardInterrupt
        return FIGURES["cheng-fig3"].run(setting, job)

    figure = replace(FIGURES["cheng-fig3"], run=interrupted)
    monkeypatch.setattr(reproduce, "figure_named", lambda _: figure)
    outcome = command("reproduce", "cheng-fig3", "--preset", "smoke")
    assert (outcome.code, outcome.stdout) == (130, "")
    assert outcome.stderr == (
        "icgd: Stopped with 1 of 2 jobs finished and 0 begun, kept in "
        "results/cheng-fig3/.smoke.partial. Give the same command again to resume.\n"
    )
