"""Modes of torch that a caller has set around a call."""

import numpy as np
import pytest
import torch

import icgd
from icgd.environment import own_modes
from icgd.training import (
    Gaussian,
    InContextTask,
    KernelTransformer,
    LinearFunctions,
    Settings,
    train,
)

X, Y = [[0.5, 1.0], [1.0, 0.0], [0.3, 0.7]], [1.0, 0.5, 0.0]


def of_medium_products():
    """`torch.set_float32_matmul_precision` as a context manager."""

    class Medium:
        def __enter__(self):
            torch.set_float32_matmul_precision("medium")

        def __exit__(self, *_):
            assert torch.get_float32_matmul_precision() == "medium"  # given back by icgd
            torch.set_float32_matmul_precision("highest")

    return Medium()


MODES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "products": of_medium_products,
    "device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_no_mode_changes_a_bit_of_a_run_and_of_its_report(mode, backend):
    step = icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1)), "squared", step, icgd.Domain(x=1.0, y=1.0))

    def results():
        compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        run = compiled.run(X, Y, queries=X, backend=backend, dtype="float32")
        again = compiled.run_task(compiled.task(X, Y, dtype="float32"), backend=backend)
        report = icgd.verify(compiled, X, Y, backend=backend, dtype="float32")
        tensors = (run.parameters, run.predictions, again.parameters, report.step_bounds)
        return [tensor.numpy() for tensor in tensors]

    expected = results()
    with mode():
        found = results()
    assert all(map(np.array_equal, found, expected))


def test_training_does_not_follow_the_caller_s_autocast_nor_inference_mode():
    eye = torch.eye(2, dtype=torch.float64)
    task = InContextTask(Gaussian(eye), LinearFunctions(), n_examples=4)

    def trained():
        model = KernelTransformer(2, 1, ("linear",), transforms_covariates=False, seed=0)
        train(model, task, Settings(n_steps=3, batch_size=4, learning_rate=0.02))
        return [parameter.tolist() for parameter in model.parameters()]

    expected = trained()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert trained() == expected


def test_the_caller_s_modes_are_back_afterwards():
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        with own_modes():
            assert not torch.is_autocast_enabled("cpu")
            assert not torch.is_inference_mode_enabled()
            assert torch.zeros(2).tolist() == [0.0, 0.0]
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_inference_mode_enabled()
        assert torch.zeros(2).is_meta


def test_training_may_keep_products_of_lower_precision():
    with of_medium_products(), own_modes(exact_products=False):
        assert torch.get_float32_matmul_precision() == "medium"
