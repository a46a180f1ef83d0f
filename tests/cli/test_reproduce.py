import json

from tests.cli.files import listing


def test_the_list_names_every_figure_and_its_place(command):
    outcome = command("reproduce", "--list", "--json")
    listed = json.loads(outcome.stdout)
    figures = [f"cheng-fig{n}" for n in range(1, 7)]
    names = [*figures, "cheng-losses", "cheng-curvature", "wang-resources", "cot-cost"]
    assert [entry["figure"] for entry in listed] == names
    assert listed[3]["where"] == "Figure 4, App. D"
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
    assert listing(tmp_path) == []


def test_a_folder_that_cannot_be_is_refused(command, tmp_path):
    (tmp_path / "taken").touch()
    message = command("reproduce", "cheng-fig3", "--preset", "smoke", "--out", "taken").refusal()
    assert message == "Cannot write taken/cheng-fig3: Not a directory."
    assert listing(tmp_path) == ["taken"]
