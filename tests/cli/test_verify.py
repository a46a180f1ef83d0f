import json
from dataclasses import replace
from importlib import import_module
from math import inf

import pytest
import torch

import icgd
from icgd.certificates.balls import rounded_up
from icgd.problems import kernel_machine as kernels
from tests.cli.files import PROBLEM, compiled_run, listing, write_all
from tests.cli.test_run import FILES, QUERIES, X, Y


@pytest.fixture
def verify(command, tmp_path):
    """`icgd verify` on files that the folder holds."""
    write_all(tmp_path)
    return lambda *options: command("verify", "run.safetensors", "train.csv", *options)


def test_json_holds_the_librarys_report(verify):
    outcome = verify("--seed", "5", "--json")
    data, report = json.loads(outcome.stdout), icgd.verify(compiled_run(), X, Y, seed=5)
    assert outcome.code == 0
    assert data["verdict"] == "HOLDS"
    assert data["meaning"] == icgd.Verdict.HOLDS.value
    assert data["headline"] == report.headline
    assert data["says_nothing"] == data["certificate"]["says_nothing"] == ["domain_trajectory"]
    assert data["certificate"]["domain_trajectory"] is None
    for name in ("step_errors", "step_bounds", "trajectory_errors", "trajectory_bounds"):
        assert data[name] == getattr(report, name).tolist()
        assert data["largest"][name] == float(getattr(report, name).max())
    assert data["certificate"]["domain_step"] == report.certificate.domain_step
    assert data["certificate"]["paper_step"] == report.certificate.paper_step
    assert data["near_kinks"] == {"count": 0, "events": []}
    assert (data["backend"], data["dtype"]) == ("literal", "float64")


def test_the_table_shows_errors_beside_their_bounds(verify):
    text = verify().stdout
    report = icgd.verify(compiled_run(), X, Y)
    for value in (report.step_errors.max(), report.step_bounds.max()):
        assert f"{float(value):.1e}" in text
    assert "its proved bounds (literal backend, float64)" in " ".join(text.split())
    dense = verify("--backend", "dense", "--dtype", "float32").stdout
    assert "its proved bounds (dense backend, float32)" in dense
    assert "(b) this run" in text
    assert "Near-kink" not in text
    assert "no information (beyond the box)" in " ".join(text.split())
    assert "HOLDS for this run: every measured error is within its proved bound" in text


@pytest.mark.parametrize("options", [(), ("--rigorous",)])
def test_what_is_proved_of_the_whole_run_stands_in_the_last_line_and_in_json(verify, options):
    text, data = verify(*options).stdout, json.loads(verify(*options, "--json").stdout)
    report = icgd.verify(compiled_run(), X, Y, seed=0)
    most = rounded_up(float(report.rigorous.distances.max()))
    last = f"\nProved: the whole run is within {most:.3g} of exact gradient descent.\n"
    assert text.endswith(last)
    assert data["rigorous"]["distances"] == report.rigorous.distances.tolist()
    assert data["rigorous"]["bits"] == report.rigorous.bits


def test_a_proof_that_nobody_wants_is_left_out(verify):
    options = ("--no-rigorous", "--queries", "new.csv")
    text, data = verify(*options).stdout, json.loads(verify(*options, "--json").stdout)
    for name in ("headline", "rigorous", "trajectory_bounds", "prediction_bounds"):
        assert data[name] is None
    assert data["verdict"] == "HOLDS"
    assert text.count("not proved") == 2
    conclusion = text[text.index("HOLDS for this run: every measured error is within its") :]
    assert "Proved" not in conclusion


def test_predictions_are_verified_with_queries(verify):
    report = icgd.verify(compiled_run(), X, Y, queries=QUERIES, seed=0)
    text = verify("--queries", "new.csv").stdout
    assert "predictions" in text
    assert f"{float(report.prediction_errors.max()):.2g}" in text
    assert f"{float(report.prediction_bounds.max()):.2g}" in text
    data = json.loads(verify("--queries", "new.csv", "--json").stdout)
    assert data["prediction_errors"] == report.prediction_errors.tolist()
    assert data["prediction_bounds"] == report.prediction_bounds.tolist()
    assert data["largest"]["prediction_bounds"] == float(report.prediction_bounds.max())
    assert data["verdict"] == "HOLDS"
    assert "predictions" not in verify().stdout


def test_a_short_run_shows_what_is_proved_of_predictions_on_the_whole_domain(verify, tmp_path):
    compiled = icgd.compile(PROBLEM, icgd.ReluStack(pieces=256), n_steps=1)
    compiled.save(tmp_path / "run.safetensors")
    proved = icgd.verify(compiled, X, Y, queries=QUERIES, seed=0).certificate.domain_predictions
    assert 0 < proved < 1
    assert f"{proved:.2g}" in verify("--queries", "new.csv").stdout


def test_bounds_that_say_nothing_are_never_shown_as_numbers(command, tmp_path):
    write_all(tmp_path)
    problem = replace(PROBLEM, update=icgd.GradientStep(step_size=50.0, box=0.5))
    compiled = icgd.compile(problem, icgd.ReluStack(pieces=3), n_steps=4)
    compiled.save(tmp_path / "far.safetensors")
    files = ("verify", "far.safetensors", "train.csv", "--queries", "new.csv")
    data, text = json.loads(command(*files, "--json").stdout), command(*files).stdout
    empty = ["step_bounds", "trajectory_bounds", "prediction_bounds"]
    assert data["says_nothing"] == [*empty, "domain_step", "domain_trajectory"]
    assert [data["largest"][name] for name in empty] == [None] * 3
    assert {bound for row in data["prediction_bounds"] for bound in row} == {None}
    assert data["certificate"]["domain_predictions"] is None
    assert " ".join(text.split()).count("no information") == 6


def test_dense_and_float32_reach_the_library(verify):
    data = json.loads(verify("--backend", "dense", "--dtype", "float32", "--json").stdout)
    assert (data["backend"], data["dtype"]) == ("dense", "float32")
    assert data["verdict"] == "HOLDS"


def test_softmax_stack_is_verified_without_a_bound_of_a_paper(verify, tmp_path):
    compiled = icgd.compile(PROBLEM, n_steps=1, construction="softmax-stack", registers=40)
    compiled.save(tmp_path / "run.safetensors", weights=False)
    data = json.loads(verify("--backend", "dense", "--json").stdout)
    assert data["verdict"] == "HOLDS"
    assert data["certificate"]["paper_step"] is None
    report = icgd.verify(compiled, X, Y, backend="dense")
    assert data["step_errors"] == report.step_errors.tolist()
    text = verify().stdout
    assert "(a) any data" in text
    assert "paper" not in text
    assert "none" not in text


def test_a_broken_bound_gives_code_1(verify, monkeypatch):
    report = icgd.verify(compiled_run(), X, Y)
    broken = replace(report, step_errors=report.step_bounds * 2)
    module = import_module("icgd.cli.verify")
    monkeypatch.setattr(module, "verify_run", lambda *data, **options: broken)
    outcome = verify()
    assert outcome.code == 1
    assert "BROKEN: a measured error exceeds a proved bound" in outcome.stdout
    assert json.loads(verify("--json").stdout)["verdict"] == "BROKEN"


def test_bad_data_are_refused(verify, tmp_path):
    (tmp_path / "train.csv").write_text("a,b,c,d,price\n1,2,3,4,x\n")
    assert verify().refusal() == (
        "train.csv, column 'price' has only the class 'x'; two are needed. Name another column "
        "with --target."
    )
    assert listing(tmp_path) == FILES


def test_a_missing_file_is_refused(verify, tmp_path):
    (tmp_path / "run.safetensors").unlink()
    assert verify().refusal() == "There is no file run.safetensors."


def test_the_example_of_the_help_works(verify, command):
    assert verify().code == 0
    outcome = command(*command("verify", "--help").example())
    assert json.loads(outcome.stdout)["verdict"] == "HOLDS"


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_a_chain_is_compiled_run_and_verified(command, toml, tmp_path, backend):
    write_all(tmp_path)
    lines = """
        construction = "cot-network"
        steps = 3
        target = {widths = [4, 3, 1], activation = "relu"}
        update.batch_size = 1
    """
    outcome = command("compile", toml(lines), "-o", "c.safetensors")
    assert outcome.code == 0
    assert "4 layers used 14 times, 2 of these to predict" in outcome.stdout
    outcome = command("run", "c.safetensors", "train.csv", "--queries", "new.csv", "--json")
    assert len(json.loads(outcome.stdout)["predictions"]) == 2
    outcome = command("verify", "c.safetensors", "train.csv", "--backend", backend, "--json")
    data = json.loads(outcome.stdout)
    assert data["verdict"] == "HOLDS"
    assert data["says_nothing"] == ["domain_step", "domain_trajectory"], "some data meet a kink"
    assert data["largest"]["trajectory_bounds"] < 1e-8
    assert data["paper_trajectory"][0] == data["step_bounds"][0]
    assert data["paper_trajectory"][-1] == pytest.approx(sum(data["step_bounds"]))
    assert data["beyond_paper"] is None


OWN_DATA = "a,b,y\n0.5,0.25,1\n-0.5,0.5,0.5\n0.25,-0.75,-1\n"


def falling(u, w):
    return torch.exp(-torch.cdist(u, w, compute_mode="donot_use_mm_for_euclid_dist"))


@pytest.fixture
def verify_own(command, tmp_path, monkeypatch):
    """`icgd verify` on a run with the kernel `falling`, of which something may be stated."""
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))
    (tmp_path / "own.csv").write_text(OWN_DATA)

    def run(*options, **statement):
        icgd.register_kernel("falling", falling, **statement)
        machine, update = icgd.KernelMachine(2, "falling"), icgd.FunctionalStep(0.1)
        problem = icgd.Problem(machine, "squared", update, icgd.Domain(1.0, 1.0))
        icgd.compile(problem, n_steps=3).save(tmp_path / "own.safetensors")
        return command("verify", "own.safetensors", "own.csv", *options)

    return run


def test_json_tells_a_statement_from_an_estimate(verify_own):
    stated = json.loads(verify_own("--json", lipschitz=1.0, bound=1.0).stdout)
    assert stated["verdict"] == "HOLDS"
    assert stated["certificate"]["stated"] == ["falling"]
    assert stated["says_nothing"] == stated["certificate"]["estimated"] == []
    outcome = verify_own("--json")
    data = json.loads(outcome.stdout)
    assert outcome.code == 0
    assert "warning: Bounds rest on Lipschitz constants of the kernel 'falling'" in outcome.stderr
    assert data["verdict"] == "HOLDS_ESTIMATED"
    assert data["certificate"]["estimated"] == ["falling"]
    assert data["certificate"]["domain_step"] is None
    assert max(data["trajectory_bounds"]) < 1e-12


def test_infinite_bounds_are_null_in_json_and_no_information_in_words(verify_own):
    data = json.loads(verify_own("--json", lipschitz=lambda radius: inf).stdout)
    assert data["verdict"] == "HOLDS_EMPTY"
    assert data["step_bounds"] == data["trajectory_bounds"] == [None] * 3
    outcome = verify_own(lipschitz=lambda radius: inf)
    assert outcome.code == 0
    assert outcome.stdout.count("no information") == 4


def test_kernels_of_the_users_own_are_refused_in_one_line(verify_own, command):
    reason = (
        "The kernel 'falling' is your own function, which ball arithmetic cannot evaluate. Use "
        "a built-in kernel to have whole runs proved"
    )
    unproved = json.loads(verify_own("--json", lipschitz=1.0).stdout)
    assert unproved["unproved_because"] == reason
    assert unproved["headline"] == f"not proved by balls: t{reason[1:]}"
    message = f"{reason}."
    assert verify_own("--rigorous").refusal() == message
    assert verify_own("--rigorous", lipschitz=1.0).refusal() == message
    assert command("certify", "own.safetensors", "own.csv").refusal() == message
    assert "contradicts its statement" in verify_own(lipschitz=0.1).refusal()
    del kernels.KERNELS["falling"]
    text = command("verify", "own.safetensors", "own.csv").refusal()
    assert text.startswith("own.safetensors needs what is not known here: Unknown kernel 'falling'")
    assert text.endswith("and state their constants again, before loading.")
