import json
from importlib import import_module

from icgd_papers.registry import REPRODUCTIONS
from tests.cli.files import listing


def test_the_list_names_every_figure_and_its_place(command):
    outcome = command("reproduce", "--list", "--json")
    listed = json.loads(outcome.stdout)
    assert [entry["figure"] for entry in listed] == list(REPRODUCTIONS)
    assert listed[3]["where"] == "Figure 4, App. D"
    assert listed[1]["paper preset"] == "288 studies, 1,200 core-hours"
    assert {entry["figure"]: entry["paper preset"] for entry in listed}["cot-fig2"] == (
        "135 studies, 1,000 core-hours"
    )
    assert listed[-5]["paper preset"] == "100 studies"
    assert listed[-3]["paper preset"] == "90 studies"
    assert listed[-1]["paper preset"] == "5 studies"
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
    assert (
        command("reproduce", "cheng-fig3", "--device", "cuda:9")
        .refusal()
        .startswith("device='cuda:9' is not there")
    )
    assert command("reproduce", "cheng-fig3", "cot-cost", "--only", "panel-a").refusal() == (
        "cot-cost has no panels to choose from. Leave out --only."
    )
    assert listing(tmp_path) == []


def test_a_part_is_written_under_its_own_name(command, tmp_path):
    arguments = ("reproduce", "cheng-fig3", "--preset", "smoke", "--only", "panel-b")
    outcome = command(*arguments, "--device", "auto")
    assert outcome.stdout.endswith(
        "Saved smoke-panel-b.json, smoke-panel-b.csv, smoke-panel-b.png in results/cheng-fig3\n"
    )


def test_an_estimate_does_nothing_else(command, tmp_path, monkeypatch):
    estimates = import_module("icgd_papers.estimates")
    monkeypatch.setattr(estimates, "TIMED_TASKS", 2)
    outcome = command("reproduce", "cheng-fig3", "--preset", "paper", "--estimate")
    assert (outcome.code, outcome.stdout) == (0, "")
    assert outcome.stderr.startswith(
        "cheng-fig3, paper: 6 studies with 210,000 steps in all, about "
    )
    assert outcome.stderr.endswith(" core-hours.\n")
    assert listing(tmp_path) == []


def test_the_paper_preset_first_says_what_it_takes(command, monkeypatch):
    module = import_module("icgd_papers.cli.reproduce")

    def stopped(order, on_standing):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("icgd_papers.estimates"), "TIMED_TASKS", 2)
    monkeypatch.setattr(module, "fulfil", stopped)
    outcome = command("reproduce", "cheng-fig3", "--preset", "paper", "--only", "panel-a")
    assert outcome.stderr.startswith("cheng-fig3, paper-panel-a: 3 studies with 60,000 steps in")


def test_ctrl_c_says_what_is_kept(command, tmp_path, monkeypatch):
    training = import_module("icgd_papers.figures.cheng_training")
    real, trained = training.train_once, []

    def interrupted(*given):
        trained.append(given)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(training, "train_once", interrupted)
    outcome = command("reproduce", "cheng-fig3", "--preset", "smoke")
    assert (outcome.code, outcome.stdout) == (130, "")
    assert outcome.stderr == (
        "icgd: Stopped with 1 of 2 studies finished and 0 begun; they are kept in "
        "results/cheng-fig3/.smoke.partial. Give the same command again to go on.\n"
    )
    assert command("reproduce", "cheng-fig3", "--preset", "smoke").code == 0


def test_a_folder_that_cannot_be_is_refused(command, tmp_path):
    (tmp_path / "taken").touch()
    message = command("reproduce", "cheng-fig3", "--preset", "smoke", "--out", "taken").refusal()
    assert message == "Cannot write taken/cheng-fig3: Not a directory."
    assert listing(tmp_path) == ["taken"]
