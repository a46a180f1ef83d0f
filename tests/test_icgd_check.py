"""The checker by itself: what it accepts, and everything that it must refuse."""

import ast
import hashlib
import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import icgd
import icgd_check
from tests.cases import make_case
from tests.linear_cases import compiled_of, data, problem_of

SOURCE = Path(icgd_check.__file__)


@cache
def certificate():
    """A certificate of 5 steps of a small network."""
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", n_examples=4)
    compiled = icgd.compile(case.problem, "softmax-stack", n_steps=5)
    return compiled.certify(case.x, case.y, seed=1).text


@pytest.fixture
def check(tmp_path, capsys):
    """Check a text or fields: the exit code and what is printed."""

    def run(content, *options):
        path = tmp_path / "run.cert.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = icgd_check.main([str(path), *options])
        return code, capsys.readouterr().out

    return run


def sealed(fields):
    """The fields as a text whose seal is right."""
    body = {"sha256": "", **{name: part for name, part in fields.items() if name != "sha256"}}
    text = json.dumps(body)
    seal = hashlib.sha256(text.encode()).hexdigest()
    return text.replace('"sha256": ""', f'"sha256": "{seal}"', 1)


def changed(**parts):
    return sealed({**json.loads(certificate()), **parts})


def test_it_is_one_short_file_without_icgd():
    lines = SOURCE.read_text().splitlines()
    assert len(lines) <= 300
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - set(sys.stdlib_module_names) == {"flint"}


def test_it_runs_alone_and_never_imports_icgd(tmp_path):
    path = tmp_path / "run.cert.json"
    path.write_text(certificate())
    copy = tmp_path / "checker.py"
    copy.write_bytes(SOURCE.read_bytes())
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['checker.py', {str(path)!r}]\n"
        "try: runpy.run_path('checker.py', run_name='__main__')\n"
        "finally: print(sorted({'icgd', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    accepted, loaded = done.stdout.splitlines()
    assert accepted.startswith("Accepted: After each of 5 steps every number of the run lies")
    assert loaded == "[]"
    assert done.stderr == ""


def certify_function():
    machine = icgd.KernelMachine(2, (icgd.KernelHead("rbf"), icgd.KernelHead("linear", weight=0.2)))
    update = icgd.FunctionalStep((0.2, 0.1, 0.3), noise=0.1, transforms=0.01)
    problem = icgd.Problem(machine, "squared", update, icgd.Domain(1.0, 1.0))
    x, y = torch.rand(4, 2, dtype=torch.float64), torch.rand(4, 1, dtype=torch.float64)
    return icgd.compile(problem, n_steps=3).certify(x, y, queries=x[:2] / 2)


def certify_linear():
    x, y, _ = data()
    return compiled_of(problem_of("logistic")).certify(x, y)


def certify_chain():
    update = icgd.GradientStep(0.3, 1.0, batch_size=2)
    problem = icgd.Problem(
        icgd.MLP((2, 3, 1), "relu", biases=True), "squared", update, icgd.Domain(1.0, 1.0)
    )
    x, y = torch.rand(5, 2, dtype=torch.float64), torch.rand(5, 1, dtype=torch.float64)
    return icgd.compile(problem, "cot-network", n_steps=4).certify(x, y, seed=1)


@pytest.mark.parametrize("make", [certify_function, certify_linear, certify_chain])
def test_runs_of_every_kind_are_accepted(check, make):
    code, printed = check(make().text)
    assert (code, printed.split(":")[0]) == (0, "Accepted")


def test_a_thousand_changed_digits_are_all_refused(check):
    text, chooser = certificate(), random.Random(0)
    places = [place for place, mark in enumerate(text) if mark in "0123456789abcdef"]
    for place in chooser.sample(places, 1000):
        other = chooser.choice([mark for mark in "0123456789abcdef" if mark != text[place]])
        code, printed = check(text[:place] + other + text[place + 1 :])
        assert (code, printed[:8]) == (1, "Refused:"), (place, other)


def test_a_smaller_distance_is_refused_and_its_step_is_named(check):
    distances = json.loads(certificate())["distances"]
    for step in range(1, 5):
        smaller = list(distances)
        smaller[step - 1] = (0.9 * float.fromhex(distances[step - 1])).hex()
        code, printed = check(changed(distances=smaller))
        assert code == 1
        assert f"step {step} is not as close to exact descent as it claims" in printed


@pytest.mark.parametrize("name", ["x", "y", "initial"])
def test_altered_data_are_refused_at_the_first_step(check, name):
    data = json.loads(certificate())["data"]
    rows = data[name] if name == "initial" else data[name][0]
    rows[0] = (float.fromhex(rows[0]) + 1e-6).hex()
    code, printed = check(changed(data=data))
    assert code == 1
    assert "step 1 is not as close" in printed


def test_altered_weights_are_refused_at_their_step(check):
    steps = json.loads(certificate())["steps"]
    steps[2][4] = (float.fromhex(steps[2][4]) + 1e-9).hex()
    assert "step 3 is not as close" in check(changed(steps=steps))[1]


def test_another_problem_is_refused(check):
    problem = json.loads(certificate())["problem"]
    for part in (
        {"step_size": (0.25).hex()},
        {"activation": "sigmoid"},
        {"loss": "huber"},
        {"box": (0.1).hex()},
        {"batch_size": 2},
        {"biases": True},
        {"widths": [2, 1, 3]},
        {"momentum": "0x0.0p+0"},
        {"kind": "linear"},
        {"kind": "quantum"},
    ):
        assert check(changed(problem={**problem, **part}))[0] == 1, part


def test_a_claim_that_says_more_is_refused(check):
    claim = json.loads(certificate())["claim"]
    for other in (claim.replace("5 steps", "9 steps"), claim + " It is optimal.", ""):
        code, printed = check(changed(claim=other))
        assert code == 1
        assert "it claims more or less than this" in printed


BAD = {
    "empty": b"",
    "not utf-8": b"\xff\xfe\x00",
    "no object": b"[]",
    "a number": b"3",
    "deep": b"[" * 100_000,
    "NaN": b'{"version": NaN}',
    "twice": b'{"version": 1, "version": 1}',
    "future": b'{"version": 2}',
    "no seal": b'{"version": 1}',
    "huge integer": b'{"version": 1' + b"0" * 5000 + b"}",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_is_no_certificate_is_refused_in_one_line(check, content):
    code, printed = check(content)
    assert code == 1
    assert printed.startswith("Refused: ")
    assert printed.count("\n") == 1


def test_a_version_of_the_future_says_what_is_read(check):
    assert "this program reads version 1 only" in check(changed(version=2))[1]


def test_truncated_files_are_refused(check):
    text = certificate()
    for length in (1, 10, 100, len(text) // 2, len(text) - 3):
        assert check(text[:length])[0] == 1


def with_number(text):
    """The certificate with a number of the first step replaced."""
    steps = json.loads(certificate())["steps"]
    steps[0][0] = text
    return changed(steps=steps)


@pytest.mark.parametrize(
    "text",
    [
        "nan",
        "inf",
        "-inf",
        "0x1p+99999",
        "0x1p+1023999999999999",
        "1.5",
        "",
        "x",
        None,
        1.0,
        [],
        True,
    ],
)
def test_numbers_that_are_no_finite_doubles_are_refused(check, text):
    code, printed = check(with_number(text))
    assert code == 1
    assert printed.count("\n") == 1


@pytest.mark.parametrize("bits", [0, -1, 2**16 + 1, 10**30, 1.5, "128", None, True])
def test_impossible_precisions_are_refused(check, bits):
    assert check(changed(bits=bits))[0] == 1


def test_too_few_bits_prove_nothing(check):
    assert "step" in check(changed(bits=8))[1]


def test_missing_and_foreign_fields_are_refused(check):
    fields = json.loads(certificate())
    for name in ("version", "claim", "problem", "data", "bits", "distances", "steps"):
        assert check(sealed({k: v for k, v in fields.items() if k != name}))[0] == 1, name
    assert check(changed(data={**fields["data"], "weights": []}))[0] == 1
    assert check(changed(steps=fields["steps"][:-1]))[0] == 1
    assert check(changed(steps=[], distances=[]))[0] == 1


def test_a_negative_or_infinite_distance_is_refused(check):
    distances = json.loads(certificate())["distances"]
    for text in ("-0x1.0p+0", "inf", "nan"):
        assert check(changed(distances=[text, *distances[1:]]))[0] == 1


def written(path, names, rows):
    """A table with a header, or without one if there are no names."""
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    path.write_text("\n".join([",".join(names), *lines] if names else lines))


def small_run(construction="relu-stack"):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", n_examples=4)
    return icgd.compile(case.problem, construction, n_steps=2), case.x, case.y


def test_the_files_of_a_run_are_recognised(check, tmp_path):
    compiled, x, y = small_run()
    file, data = tmp_path / "run.safetensors", tmp_path / "train.csv"
    compiled.save(file, weights=False)
    written(data, ("a", "b", "y"), torch.cat([x, y], dim=1))
    proof = compiled.certify(x, y, files=(file, data))
    assert check(proof.text, "--file", str(file), "--data", str(data))[0] == 0
    code, printed = check(proof.text, "--file", str(data))
    assert code == 1
    assert "train.csv is another file" in printed
    assert check(proof.text, "--data", str(file))[0] == 1
    assert check(proof.text, "--data", str(tmp_path / "none.csv"))[0] == 1
    assert check(certificate(), "--file", str(file))[0] == 1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("names", [(), ("y", "a", "b")], ids=["plain", "header"])
def test_a_table_is_recognised_with_its_labels_in_any_column(check, tmp_path, dtype, names):
    compiled, x, y = small_run()
    data = tmp_path / "train.csv"
    written(data, names, torch.cat([y, x], dim=1))
    proof = compiled.certify(x, y, files=(None, data), dtype=dtype)
    assert check(proof.text, "--data", str(data)) == (0, f"Accepted: {proof.claim}\n")


@pytest.mark.parametrize("names", [(), ("a", "b", "y")], ids=["plain", "header"])
def test_a_true_proof_about_other_data_is_not_one_about_the_table(check, tmp_path, names):
    compiled, x, y = small_run()
    data = tmp_path / "train.csv"
    written(data, names, torch.cat([x, y], dim=1))
    for others in ((x / 2, y), (x, y / 2), (x[1:], y[1:]), (x.roll(1, 0), y)):
        proof = compiled.certify(*others, files=(None, data))
        assert check(proof.text)[0] == 0
        code, printed = check(proof.text, "--data", str(data))
        assert (code, printed[:8]) == (1, "Refused:")
        assert printed.endswith("train.csv is other data.\n")


def test_a_missing_certificate_is_refused(capsys, tmp_path):
    assert icgd_check.main([str(tmp_path / "none")]) == 1
    assert icgd_check.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("Refused: ") == 2


def test_fields_that_nobody_checks_are_refused(check):
    for parts in ({"note": "It is optimal."}, {"version": True}, {"version": 1.0}):
        assert check(changed(**parts))[0] == 1, parts
    fields = json.loads(certificate())
    assert check(sealed({k: v for k, v in fields.items() if k != "transformer"}))[0] == 1


def with_head(**parts):
    fields = json.loads(certify_function().text)
    first, *others = fields["problem"]["heads"]
    heads = [{**first, **parts}, *others]
    return sealed({**fields, "problem": {**fields["problem"], "heads": heads}})


def test_a_shape_that_no_kernel_reads_is_a_finite_double_as_well(check):
    assert check(with_head())[0] == 0
    for text in ("nan", "inf", "0X1.0P+0", "1.0"):
        assert "a number is not a finite double" in check(with_head(shape=text))[1]


@pytest.mark.parametrize("name", ["\ud800", "x\nAccepted: all is proved", "\x1b[2K\rAccepted: x"])
def test_a_refusal_is_one_line_of_plain_text_whatever_the_file_holds(check, name):
    code, printed = check(with_head(**{name: 1}))
    assert code == 1
    assert printed.isascii()
    assert printed[:-1].isprintable()


def one_number(**problem):
    """A certificate of one exact step of a linear model with one weight, 1, and no gradient."""
    zero, one = (0.0).hex(), (1.0).hex()
    described = {"kind": "linear", "link": "identity", "intercept": False, "reduction": "mean"}
    sizes = {"step_size": one, "l2": zero, "l1": zero, "box": None}
    return changed(
        claim=icgd_check.CLAIM.format(1, 0.0),
        problem={**described, **sizes, **problem},
        data={"x": [[zero]], "y": [[zero]], "queries": [], "initial": [one]},
        distances=[zero],
        steps=[[one]],
    )


def test_what_is_no_descent_is_refused(check):
    assert check(one_number())[0] == 0
    for name in ("step_size", "box"):
        for size in (-1.0, 0.0):
            assert "is not positive" in check(one_number(**{name: size.hex()}))[1], name


def test_a_run_without_numbers_proves_nothing(check):
    fields = json.loads(one_number())
    data = {**fields["data"], "x": [[]], "initial": []}
    assert check(sealed({**fields, "data": data, "steps": [[]]}))[0] == 1


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "0.5"])
def test_a_real_number_that_is_no_text_is_refused_wherever_it_stands(check, text):
    for name in ("transformer", "file_sha256", "data_sha256"):
        plain = changed(**{name: 7}).replace(f'"{name}": 7', f'"{name}": {text}')
        code, printed = check(plain)
        assert code == 1
        assert printed.endswith("a number is not a finite double.\n"), name


ZERO, N_MANY = (0.0).hex(), 20_000


def many(problem, n_weights):
    """A certificate of one step of `N_MANY` examples, all 0: a file of a megabyte."""
    data = {"x": [[ZERO]] * N_MANY, "y": [[ZERO]] * N_MANY, "queries": []}
    return changed(
        claim=icgd_check.CLAIM.format(1, 0.0),
        problem={**problem, "step_size": (1.0).hex()} if "widths" in problem else problem,
        data={**data, "initial": [ZERO] * n_weights},
        distances=[ZERO],
        steps=[[ZERO] * n_weights],
    )


def test_what_would_take_too_much_memory_is_refused(check):
    network = {**json.loads(certificate())["problem"], "widths": [1, N_MANY, 1]}
    head = {"kernel": "rbf", "transform": [[ZERO]], "weight": ZERO, "shape": ZERO}
    machine = {"kind": "function", "step_sizes": [(1.0).hex()], "noise": ZERO, "transforms": []}
    for text in (many(network, 2 * N_MANY), many({**machine, "heads": [head]}, N_MANY)):
        code, printed = check(text)
        assert code == 1
        assert "balls at once, too many" in printed
    tall = {**head, "transform": [[ZERO]] * 10 * N_MANY}
    fields = json.loads(one_number())
    for part in ({"heads": [tall]}, {"heads": [head], "transforms": [tall["transform"]]}):
        data = {**fields["data"], "x": [[ZERO]] * 99, "y": [[ZERO]] * 99, "initial": [ZERO] * 99}
        code, printed = check(sealed({**fields, "problem": {**machine, **part}, "data": data}))
        assert (code, "balls at once, too many" in printed) == (1, True)


def test_an_interrupted_check_is_a_refusal(check, monkeypatch):
    def interrupted(text):
        raise KeyboardInterrupt

    monkeypatch.setattr(icgd_check, "check", interrupted)
    code, printed = check(certificate())
    assert code == 1
    assert printed.endswith("run.cert.json: it cannot be checked: KeyboardInterrupt().\n")


def test_without_python_flint_it_says_what_to_install(tmp_path):
    program = (
        "import runpy, sys\n"
        "sys.modules['flint'] = None\n"
        f"runpy.run_path({str(SOURCE)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "icgd-check needs python-flint: pip install python-flint\n"
