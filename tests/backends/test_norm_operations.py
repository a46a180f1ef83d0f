"""Operations of layer norms against torch's own, forward and backward."""

import torch
from torch.nn import functional

import icgd
from icgd.backends.rules import Machine, operation
from icgd.program.norm_instructions import Covary, ScaleCentred

TARGET = icgd.MLP((3, 4), norms=(1,), norm_eps=0.1)
PROBLEM = icgd.Problem(TARGET, "squared", icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0))


def machine() -> Machine:
    program = icgd.compile(PROBLEM, "relu-stack", n_steps=1).program
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(2, 5, 3, generator=generator, dtype=torch.float64)
    task = icgd.as_task(PROBLEM, x, torch.zeros(2, 5, 4))
    found = Machine(program, task.initial, task.x, task.y, task.queries)
    for name in ("linear_1", "passed_1"):
        found.slots[name].copy_(torch.randn(2, 5, 4, generator=generator, dtype=torch.float64))
    return found


def test_a_norm_and_its_derivative_are_those_of_torch():
    found = machine()
    z = found.slots["linear_1"].clone().requires_grad_()
    normed = functional.layer_norm(z, (4,), eps=0.1)
    (truth,) = torch.autograd.grad(normed, z, found.slots["passed_1"])
    operation(Covary("linear_1", "linear_1", "variance_1"), found)()
    torch.testing.assert_close(found.slots["variance_1"], z.var(-1, correction=0, keepdim=True))
    found.slots["scale_1"].copy_((found.slots["variance_1"] + 0.1).rsqrt())
    operation(ScaleCentred("linear_1", "scale_1", "normed_1"), found)()
    torch.testing.assert_close(found.slots["normed_1"], normed.detach(), rtol=1e-12, atol=1e-13)
    operation(Covary("passed_1", "normed_1", "shared_1"), found)()
    back = ScaleCentred("passed_1", "scale_1", "delta_1", "normed_1", "shared_1")
    operation(back, found)()
    torch.testing.assert_close(found.slots["delta_1"], truth, rtol=1e-12, atol=1e-13)


def test_what_is_read_stays_as_it_is():
    found = machine()
    found.slots["scale_1"].fill_(2.0)
    before = {name: slot.clone() for name, slot in found.slots.items()}
    operation(Covary("passed_1", "linear_1", "shared_1"), found)()
    operation(ScaleCentred("passed_1", "scale_1", "delta_1", "linear_1", "shared_1"), found)()
    for name, slot in found.slots.items():
        if name not in ("shared_1", "delta_1"):
            assert torch.equal(slot, before[name]), name
