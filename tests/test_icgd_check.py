"""The checker by itself: what it accepts, and what is no certificate; see also test_forgeries."""

import ast
import random
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import icgd
import icgd_check
from tests.cases import make_case
from tests.forgeries import (
    changed,
    fields_of,
    parts,
    refusal,
    replaced,
    sealed,
    with_problem,
)

SOURCE = Path(icgd_check.__file__)
ZERO, ONE = (0.0).hex(), (1.0).hex()


@pytest.fixture
def check(tmp_path, capsys):
    """Check a text: the exit code and what is printed."""

    def run(content, *options):
        path = tmp_path / "run.cert.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = icgd_check.main([str(path), *options])
        return code, capsys.readouterr().out

    return run


# The program


def test_it_imports_flint_and_the_standard_library_only():
    nodes = list(ast.walk(ast.parse(SOURCE.read_text())))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    roots = {name.split(".")[0] for name in imported}
    assert roots - set(sys.stdlib_module_names) == {"flint"}


def run_python(folder, program):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_it_runs_alone_and_says_what_is_proved(tmp_path):
    fields = fields_of("momentum")
    (tmp_path / "run.cert.json").write_text(sealed(fields))
    (tmp_path / "checker.py").write_bytes(SOURCE.read_bytes())
    done = run_python(
        tmp_path,
        "import runpy, sys\n"
        "sys.argv = ['checker.py', 'run.cert.json']\n"
        "try: runpy.run_path('checker.py', run_name='__main__')\n"
        "finally: print(sorted({'icgd', 'torch', 'numpy'} & set(sys.modules)))",
    )
    assert (done.returncode, done.stderr) == (0, "")
    accepted, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    for words in (
        "Accepted: After each of 3 steps every number of the run is within its stated distance of",
        f"at the end within {float.fromhex(fields['distances'][-1])}, and its predictions",
        f"within {float.fromhex(fields['prediction_distance'])}.",
        "a 2-2-1 tanh network on the squared loss",
        "on 4 examples",
    ):
        assert words in accepted


def test_without_python_flint_it_says_what_to_install(tmp_path):
    path = f"runpy.run_path({str(SOURCE)!r}, run_name='__main__')"
    done = run_python(tmp_path, f"import runpy, sys; sys.modules['flint'] = None; {path}")
    assert done.returncode == 1
    assert done.stderr == "icgd-check needs python-flint: pip install python-flint\n"


NETWORK, UNIT = icgd.MLP((2, 3, 1)), icgd.Domain(1.0, 1.0)
HEADS = (icgd.KernelHead("rbf"), icgd.KernelHead("linear", weight=0.2))
MOVED = icgd.FunctionalStep((0.2, 0.1, 0.3), noise=0.1, transforms=0.01)
TRANSFORMERS = {
    "softmax-stack": (NETWORK, "squared", icgd.GradientStep(0.3, 1.0)),
    "relu-stack": (NETWORK, "squared", icgd.AdamStep(0.02, 1.0, batch_size=2, average=0.5)),
    "cot-network": (icgd.MLP((2, 3, 1), "relu"), "squared", icgd.GradientStep(0.3, 1.0, 2)),
    "linear-stack": (icgd.LinearModel(2), "matching", icgd.ProximalStep(0.3, 0.1, 0.02, 1.0)),
    "functional": (icgd.KernelMachine(2, HEADS), "squared", MOVED),
}


@pytest.mark.parametrize("construction", TRANSFORMERS)
def test_runs_of_transformers_are_accepted(check, construction):
    problem = icgd.Problem(*TRANSFORMERS[construction], UNIT)
    x, y = torch.rand(5, 2, dtype=torch.float64), torch.rand(5, 1, dtype=torch.float64)
    proof = icgd.compile(problem, construction, n_steps=3).certify(x, y, queries=x[:2] / 2)
    assert check(proof.text) == (0, f"Accepted: {proof.claim}\n")


# Files that are no certificates


def test_a_thousand_changed_digits_are_all_refused(check):
    text, chooser = sealed(fields_of("Adam")), random.Random(0)
    places = [place for place, mark in enumerate(text) if mark in "0123456789abcdef"]
    for place in chooser.sample(places, 1000):
        other = chooser.choice([mark for mark in "0123456789abcdef" if mark != text[place]])
        code, printed = check(text[:place] + other + text[place + 1 :])
        assert (code, printed[:8]) == (1, "Refused:"), (place, other)


def test_a_claim_that_says_more_is_refused(check):
    claim = icgd_check.claim_of(fields_of("plain"))
    for other in (claim.replace("3 steps", "9 steps"), claim + " It is optimal.", "", None):
        code, printed = check(sealed(fields_of("plain"), claim=other))
        assert (code, "it claims more or less than this" in printed) == (1, True)


def test_a_claim_names_the_activation_of_the_outputs_unless_there_is_none():
    fields = fields_of("plain")
    problem = fields["problem"] | {"activation": "tanh", "output_activation": "sigmoid"}
    assert "tanh network with sigmoid outputs on" in icgd_check.claim_of(
        {**fields, "problem": problem}
    )
    problem |= {"output_activation": "identity"}
    assert "tanh network on" in icgd_check.claim_of({**fields, "problem": problem})


def test_the_curvature_of_a_smoothed_loss_is_rounded_up():
    for width in (0.1, 0.3, 0.75, 3.0):
        _, curvature = icgd_check.loss_named(f"smooth_l1_{width}")
        assert Fraction(curvature) > 1 / Fraction(width)


BAD = {
    "empty": b"",
    "not utf-8": b"\xff\xfe\x00",
    "no object": b"[]",
    "a number": b"3",
    "deep": b"[" * 100_000,
    "NaN": b'{"version": NaN}',
    "twice": b'{"version": 2, "version": 2}',
    "no seal": b'{"version": 2}',
    "huge integer": b'{"version": 2' + b"0" * 5000 + b"}",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_is_no_certificate_is_refused_in_one_line(check, content):
    code, printed = check(content)
    assert (code, printed[:9], printed.count("\n")) == (1, "Refused: ", 1)


@pytest.mark.parametrize("version", [1, 3])
def test_other_versions_are_refused_with_both_named(check, version):
    expected = f"it has version {version}, and this program reads version 2 only.\n"
    assert check(sealed(changed(version=version)))[1].endswith(expected)
    assert check(f'{{"version": {version}}}')[1].endswith(expected)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(check, monkeypatch):
    text = sealed(fields_of("plain"))
    monkeypatch.setattr(icgd_check, "MOST_BYTES", len(text))
    assert check(text)[0] == 0
    monkeypatch.setattr(icgd_check, "MOST_BYTES", len(text) - 1)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was read"))
    code, printed = check(text)
    assert code == 1
    assert printed.endswith(f"it has {len(text)} bytes, and at most {len(text) - 1} are read.\n")


def test_truncated_and_missing_files_are_refused(check, capsys, tmp_path):
    text = sealed(fields_of("plain"))
    for length in (1, 10, 100, len(text) // 2, len(text) - 3):
        assert check(text[:length])[0] == 1
    assert icgd_check.main([str(tmp_path / "none")]) == 1
    assert icgd_check.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("Refused: ") == 2


@pytest.mark.parametrize(
    "text",
    ["nan", "inf", "-inf", "0x1p+99999", "0x1p+1023999999999999", "0X1.0P+0", "1.5", "", "x", None,
     1.0, [], True],
)  # fmt: skip
def test_numbers_that_are_no_finite_doubles_are_refused_everywhere(check, text):
    kernel = ("problem", "heads", 0, 0, "shape")  # which rbf does not read
    places = [("plain", path) for path, part in parts(fields_of("plain")) if part == ONE]
    places += [("plain", ("distances", 0)), ("plain", ("prediction_distance",)), ("kernel", kernel)]
    for name, path in [*places, ("Adam", ("problem", "rules", 0, "root", "eps"))]:
        code, printed = check(sealed(replaced(fields_of(name), path, text)))
        assert (code, printed.count("\n")) == (1, 1), path


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "0.5"])
def test_a_real_number_that_is_no_text_is_refused_wherever_it_stands(check, text):
    for name in ("transformer", "file_sha256", "data_sha256"):
        plain = sealed(changed(**{name: 7})).replace(f'"{name}": 7', f'"{name}": {text}')
        assert f"the real number {text} is not given as a text" in check(plain)[1], name


@pytest.mark.parametrize("bits", [0, -1, 2**16 + 1, 10**30, 1.5, "128", None, True])
def test_impossible_precisions_are_refused(bits):
    assert refusal(changed(bits=bits))


def test_few_bits_are_refused_whatever_they_would_prove():
    reason = "it asks for 63 bits, and 64 to 65536 are allowed"
    assert refusal(changed("plain", bits=63)) == reason


@pytest.mark.parametrize("width", ["\n\n10", "1_0", " 0.5", "0.50", "١٠", "inf", "-1.0", "nan"])
def test_a_loss_whose_name_is_not_written_plainly_is_refused(width):
    assert "its loss has a" in refusal(with_problem("plain", loss=f"smooth_l1_{width}"))


DISGUISED = "(tanh(x)*1*\n         7) on -64 to 64"
"""A function whose 7 stands where its first line has a 1."""


@pytest.mark.parametrize(
    "text", [DISGUISED, "\uff54anh(x) on -64 to 64", "tanh(x) # 7 on -64 to 64"], ids=ascii
)
def test_a_function_is_what_its_text_says_or_refused(text):
    """The network of the case has tanh, and its certificate would be accepted."""
    assert with_problem()["problem"]["activation"] == "tanh"
    assert refusal(with_problem(activation="tanh(x) on -64 to 64")) == ""
    assert refusal(with_problem(activation=text)) == "a function has characters that none needs"


@pytest.mark.parametrize("n", ["1e999999999", "0e999999999", "1e-999999999"])
def test_numbers_that_take_too_long_are_refused(n):
    for text in (f"{n}*x on -64 to 64", f"0 up to {n}, x on -64 to 64", f"x on -64 to {n}"):
        assert refusal(with_problem(activation=text)) == "a number is too large or too small"


def test_what_is_no_descent_is_refused():
    for name, field in (("box", "box"), ("boxed", "step_size"), ("norms", "norm_eps")):
        for size in (-1.0, 0.0):
            reason = refusal(with_problem(name, **{field: size.hex()}))
            assert reason == "a step, a box or another number is not positive"
    assert refusal(changed(steps=[], distances=[]))
    nothing = {"x": [[]], "y": [[ZERO]], "queries": [], "rates": None, "initial": []}
    assert refusal(changed("ridge", data=nothing, steps=[[]] * 3, predictions=[]))


@pytest.mark.parametrize(
    "others",
    [
        {"prediction_distance": "It is optimal."},
        {"predictions": [[]], "prediction_distance": ZERO},
        {"transformer": {"note": "It is optimal.", "dtype": "float64"}},
        {"file_sha256": "It is optimal."},
        {"data_sha256": ["It is optimal."]},
    ],
)
def test_what_is_not_checked_may_not_say_anything(others):
    unasked = {"predictions": [], "prediction_distance": None}
    fields = changed("ridge", data={**fields_of("ridge")["data"], "queries": []}, **unasked)
    assert refusal(fields) == ""
    assert refusal({**fields, **others})


def test_predictions_have_the_form_of_the_labels():
    (first, second) = fields_of("kernel")["predictions"]
    assert len(first) == len(second) == 2
    for others in ([first + second], [[entry] for entry in first + second], [first], []):
        expected = "its predictions do not fit its queries"
        assert refusal(changed("kernel", predictions=others)) == expected


@pytest.mark.parametrize("name", ["\ud800", "x\nAccepted: all is proved", "\x1b[2K\rAccepted: x"])
def test_a_refusal_is_one_line_of_plain_text_whatever_the_file_holds(check, name):
    head = fields_of("kernel")["problem"]["heads"][0][0]
    code, printed = check(sealed(with_problem("kernel", heads=[[{**head, name: 1}]])))
    assert (code, printed.isascii(), printed[:-1].isprintable()) == (1, True, True)


def test_what_would_take_too_much_memory_is_refused():
    """A file of a megabyte: 20,000 examples of a wide network, or of a kernel machine."""
    many, too_many = [[ZERO]] * 20_000, re.compile(r"it needs \d+ balls at once, too many")
    given = {"x": many, "y": many, "queries": [], "rates": None, "initial": [ZERO] * 40_000}
    unasked = {"data": given, "predictions": [], "prediction_distance": None}
    assert too_many.fullmatch(refusal({**with_problem(widths=[1, 20_000, 1]), **unasked}))
    head = {**fields_of("kernel")["problem"]["heads"][0][0], "transform": [[ONE]]}
    assert too_many.fullmatch(refusal({**with_problem("kernel", heads=[[head]]), **unasked}))
    tall = {**head, "transform": many * 10}
    for part in ({"heads": [[tall]]}, {"heads": [[head]], "transforms": [many * 10]}):
        few = {**given, "x": many[:99], "y": many[:99], "initial": [ZERO] * 99}
        fields = {**with_problem("kernel", **part), **unasked, "data": few}
        assert too_many.fullmatch(refusal(fields))


def test_an_interrupted_check_is_a_refusal(check, monkeypatch):
    def interrupted(text):
        raise KeyboardInterrupt

    monkeypatch.setattr(icgd_check, "check", interrupted)
    code, printed = check(sealed(fields_of("plain")))
    assert code == 1
    assert printed.endswith("run.cert.json: it cannot be checked: KeyboardInterrupt().\n")


# Files that a certificate is about


def written(path, names, rows):
    """A table with a header, or without one if there are no names."""
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    path.write_text("\n".join([",".join(names), *lines] if names else lines))


def small_run():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", n_examples=4)
    return icgd.compile(case.problem, "relu-stack", n_steps=2), case.x, case.y


def test_the_files_of_a_run_are_recognised(check, tmp_path):
    compiled, x, y = small_run()
    file, data = tmp_path / "run.safetensors", tmp_path / "train.csv"
    compiled.save(file, weights=False)
    written(data, ("a", "b", "y"), torch.cat([x, y], dim=1))
    proof = compiled.certify(x, y, files=(file, data))
    assert check(proof.text, "--file", str(file), "--data", str(data))[0] == 0
    code, printed = check(proof.text, "--file", str(data))
    assert (code, "train.csv is not the file that it is about" in printed) == (1, True)
    assert check(proof.text, "--data", str(file))[0] == 1
    assert check(proof.text, "--data", str(tmp_path / "none.csv"))[0] == 1
    assert check(sealed(fields_of("plain")), "--file", str(file))[0] == 1


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
