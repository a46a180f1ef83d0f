import json

import pytest

import icgd
from icgd.certificates import balls as rigorous
from icgd.certificates.balls import Sources, rounded_up
from icgd.errors import DataError, FileError, MissingExtraError, ProofError
from tests.cases import make_case


def test_distances_are_rounded_up_to_three_digits():
    assert rounded_up(1.2341e-13) == 1.24e-13
    assert rounded_up(0.0) == 0.0
    for number in (1.23e-13, 0.1, 7.0, 1 / 3, 5e-324, 1.7976931348623157e308):
        short = rounded_up(number)
        assert number <= short <= 1.011 * number or short == 5e-324


def test_certify_writes_what_it_returns(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    path = tmp_path / "run.cert.json"
    proof = compiled.certify(case.x, case.y, path=path, seed=3)
    fields = json.loads(path.read_text())
    run = compiled.run(case.x, case.y, seed=3).parameters
    assert path.read_text() == proof.text
    assert fields["steps"] == [[value.hex() for value in row] for row in run[1:].tolist()]
    assert tuple(map(float.fromhex, fields["distances"])) == proof.distances
    assert fields["transformer"] == {
        "construction": "relu-stack", "backend": "fused", "dtype": "float64"
    }  # fmt: skip


def test_batches_no_steps_and_missing_files_are_refused(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", tasks=(2,))
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    with pytest.raises(DataError, match="one task at a time"):
        compiled.certify(case.x, case.y)
    with pytest.raises(ProofError, match="no steps"):
        icgd.compile(case.problem, "relu-stack", n_steps=0).certify(case.x[0], case.y[0])
    with pytest.raises(FileError, match="none"):
        compiled.certify(case.x[0], case.y[0], files=(tmp_path / "none", None))
    assert Sources({}).file is None


def test_a_certificate_never_replaces_what_it_is_about(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    file, data = tmp_path / "run.safetensors", tmp_path / "train.csv"
    file.write_bytes(b"run")
    data.write_bytes(b"table")
    for own in (file, data, tmp_path / "." / "train.csv", str(file)):
        with pytest.raises(FileError, match=r"would replace .*\. Write it elsewhere\."):
            compiled.certify(case.x, case.y, path=own, files=(str(file), data))
    assert (file.read_bytes(), data.read_bytes()) == (b"run", b"table")


def test_a_missing_table_is_not_called_a_damaged_transformer(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    with pytest.raises(FileError, match=r"^Cannot read .*none\.csv: No such file or directory\.$"):
        compiled.certify(case.x, case.y, files=(None, str(tmp_path / "none.csv")))


def test_what_cannot_be_certified_is_refused_before_the_run(monkeypatch):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    monkeypatch.setattr(rigorous, "find_spec", lambda name: None)
    monkeypatch.setattr(icgd.Compiled, "run_task", lambda *parts, **options: pytest.fail("it ran"))
    with pytest.raises(MissingExtraError, match=r"icgd\[proofs\]"):
        compiled.certify(case.x, case.y)


def test_a_proof_shows_itself_in_a_line():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    proof = icgd.compile(case.problem, "relu-stack", n_steps=2).certify(case.x, case.y, seed=3)
    assert repr(proof) == (
        f"Proof(claim: {proof.claim}; steps: 2; "
        f"distance in the end: at most {proof.distances[-1]:.4g}; bits: {proof.bits})"
    )
