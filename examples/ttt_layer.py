"""The inner loop of a test-time-training layer, as a transformer.

A TTT-MLP layer keeps a network f(x) = x + norm(W_2 gelu(W_1 x)) for its hidden state. Of a sequence
of tokens it sees keys, labels and queries. It trains f to turn keys into labels, each token with a
rate of its own, and answers with f of the queries. A frozen transformer does it in a forward pass.
"""

import torch
from torch.nn import functional

import icgd

WIDTH, N_TOKENS, N_STEPS, STEP_SIZE = 8, 16, 20, 0.5
NETWORK = icgd.MLP((WIDTH, 4 * WIDTH, WIDTH), "gelu", shortcuts=((0, 2),), norms=(2,))


def by_autograd(keys, labels, queries, rates, weights):
    """The same inner loop as people write it."""
    trained = [matrix.clone().requires_grad_() for matrix in NETWORK.matrices(weights)]

    def f(x):
        hidden = functional.gelu(x @ trained[0].T)
        return x + functional.layer_norm(hidden @ trained[1].T, (WIDTH,))

    for _ in range(N_STEPS):
        losses = (f(keys) - labels).square().sum(1)
        gradients = torch.autograd.grad((rates * losses).mean() / 2, trained)
        with torch.no_grad():
            for matrix, gradient in zip(trained, gradients, strict=True):
                matrix -= STEP_SIZE * gradient
    return f(queries).detach()


def main():
    """Twenty steps on sixteen tokens of width eight."""
    torch.manual_seed(0)
    tokens, direction = torch.randn(N_TOKENS, WIDTH).double(), torch.randn(WIDTH).double()
    keys, labels, queries = (tokens @ torch.randn(WIDTH, WIDTH).double() / WIDTH for _ in "KVQ")
    rates = torch.sigmoid(tokens @ direction)
    bound = max(float(view.abs().max()) for view in (keys, labels, queries))
    step, domain = icgd.GradientStep(STEP_SIZE, box=2.0), icgd.Domain(bound, bound, rate=1.0)
    problem = icgd.Problem(NETWORK, "squared", step, domain)
    compiled = icgd.compile(problem, icgd.ReluStack(pieces=1024), n_steps=N_STEPS)
    compiled.draw("ttt_layer.png")

    run = compiled.run(keys, labels, queries=queries, rates=rates, seed=0)
    loss, n_layers = run.loss_curve, compiled.summary().layers_per_step
    print(f"{n_layers} layers a step; loss {loss[0]:.3f} -> {loss[-1]:.3f}")
    real = by_autograd(keys, labels, queries, rates, run.parameters[0])
    print(f"answers off autograd by {(run.predictions - real).abs().max():.1e}")
    report = icgd.verify(compiled, keys, labels, rates=rates, seed=0)
    measured, proved = report.step_errors.max(), report.step_bounds.max()
    print(f"largest error of a step {measured:.1e}, proved {proved:.1e}")


if __name__ == "__main__":
    main()
