from dataclasses import replace

from icgd.program.instructions import LayerKind
from icgd.program.kernel_instructions import DescendFunction, KernelTerm

TERM = KernelTerm("rbf", None, 0.5, 2.0)
STEP = DescendFunction((TERM, KernelTerm("linear", ((1.0,),), 1.0, None)), 0.1, 0.25, None)


def test_a_step_in_function_space_reads_as_a_formula_and_knows_its_slots():
    kernel = "0.5 rbf[2](x, x_j) + 1 linear(G x, G x_j)"
    assert STEP.formula() == f"y -= 0.1 (sum_j K y_j + 0.25 y), K = {kernel}"
    assert STEP.kind is LayerKind.KERNEL
    assert set(STEP.reads()) == {"x", "y", "is_example"}
    assert STEP.writes() == ("y",)
    assert STEP.functions() == ()


def test_queries_and_keys_may_have_transforms_of_their_own():
    term = KernelTerm("exp", ((1.0,),), 1.0, None, ((2.0,),))
    assert term.formula() == "1 exp(G x, H x_j)"
    assert term.matrices == (((1.0,),), ((2.0,),))
    assert KernelTerm("exp", ((1.0,),), 1.0, None).matrices == (((1.0,),), ((1.0,),))


def test_a_step_with_momentum_writes_what_it_changes_too():
    step = replace(STEP, terms=(TERM,), velocity="velocity", momentum=0.5)
    assert step.writes() == ("y", "velocity")
    assert set(step.reads()) == {"x", "y", "velocity", "is_example"}
    assert step.read_at_examples() == {"y": 1.0}
    change = "velocity = 0.5 velocity - 0.1 (sum_j K y_j + 0.25 y); y += velocity"
    assert step.formula() == f"{change}, K = 0.5 rbf[2](x, x_j)"
    ahead = replace(step, ahead=0.5, noise=0.0)
    assert ahead.read_at_examples() == {"y": 1.0, "velocity": 0.5}
    assert "0.1 (sum_j K (y + 0.5 velocity)_j)" in ahead.formula()


def test_a_step_that_moves_the_inputs_writes_them_too():
    moving = replace(STEP, terms=(TERM,), noise=0.0, transform=((2.0,),))
    assert moving.writes() == ("y", "x")
    step = "y -= 0.1 (sum_j K y_j); x += A sum_j K x_j"
    assert moving.formula() == f"{step}, K = 0.5 rbf[2](x, x_j)"
