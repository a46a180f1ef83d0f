"""Compile a training run into a transformer, run it, verify it and draw it.

Run it with `python examples/train_a_network.py`; it takes a few seconds and writes three pictures
into the working folder.
"""

import torch

import icgd


def main():
    """Descent on a network that learns a curved function of two inputs."""
    random = torch.Generator().manual_seed(0)
    X = 2 * torch.rand(64, 2, generator=random, dtype=torch.float64) - 1
    y = (3 * X[:, 0]).sin() + X[:, 1] / 2
    known, new = slice(0, 48), slice(48, 64)

    problem = icgd.Problem(
        target=icgd.MLP(widths=(2, 16, 1), activation="tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.3, box=3.0),
        domain=icgd.Domain.of(X, y),
    )
    compiled = icgd.compile(problem, "softmax-stack", n_steps=100)
    compiled.draw("train_a_network_layers.png")

    run = compiled.run(X[known], y[known], queries=X[new], seed=0)  # one forward pass
    run.plot("train_a_network.png", labels=y[new])
    print(f"loss: {run.loss_curve[0]:.4f} -> {run.loss_curve[-1]:.4f}")
    left = (run.predictions[:, 0] - y[new]).square().mean() / y[new].var()
    print(f"R² at new points: {1 - left:.3f}")

    report = icgd.verify(compiled, X[known], y[known], seed=0)  # beside real gradient descent
    report.plot("train_a_network_proof.png")
    measured, proved = report.step_errors.max(), report.step_bounds.max()
    print(f"largest error of a step: {measured:.1e} measured, {proved:.1e} proved")
    print(report.verdict.value)


if __name__ == "__main__":
    main()
