import json

import pytest

import icgd
import icgd_check
from tests.cli.files import compiled_run, listing, write_all
from tests.cli.test_run import X, Y


@pytest.fixture
def certify(command, tmp_path):
    """`icgd certify` on files that the folder holds."""
    write_all(tmp_path)
    return lambda *options: command("certify", "run.safetensors", "train.csv", *options)


def test_it_writes_a_certificate_that_the_checker_accepts(certify, tmp_path, monkeypatch, capsys):
    outcome = certify("--seed", "5")
    assert outcome.code == 0
    assert "After each of 2 steps every number of the run is within" in outcome.stdout
    assert "Check it with: icgd-check run.cert.json" in outcome.stdout
    monkeypatch.chdir(tmp_path)
    files = ["--file", "run.safetensors", "--data", "train.csv"]
    assert icgd_check.main(["run.cert.json", *files]) == 0
    assert icgd_check.main(["run.cert.json", "--file", "train.csv"]) == 1
    (tmp_path / "train.csv").write_text("a\n")
    assert icgd_check.main(["run.cert.json", *files]) == 1
    assert capsys.readouterr().out.count("Refused: run.cert.json: ") == 2


def test_json_holds_the_librarys_numbers(certify, tmp_path):
    data = json.loads(certify("--seed", "5", "-o", "other.json", "--json").stdout)
    proof = compiled_run().certify(X, Y, seed=5)
    assert data["distances"] == list(proof.distances)
    assert (data["claim"], data["bits"], data["file"]) == (proof.claim, proof.bits, "other.json")
    report = icgd.verify(compiled_run(), X, Y, seed=5, rigorous=True)
    assert data["distances"] == pytest.approx(report.rigorous.distances.tolist(), rel=0.01)


def test_the_example_of_the_help_works(certify, command, tmp_path):
    assert command(*certify("--help").example()).code == 0
    assert "run.cert.json" in listing(tmp_path)


def test_a_file_that_cannot_be_written_is_refused(certify, tmp_path):
    assert "none/run.json" in certify("-o", "none/run.json").refusal()
    assert certify("--backend", "analog").refusal().startswith("Unknown backend 'analog'")
