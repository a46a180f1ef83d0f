"""A transformer whose algorithm is known: read its residual stream slot by slot.

Every coordinate of the stream has a name. Here the gradient of a network is read out of it, and
autograd agrees. If TransformerLens is installed (`pip install 'icgd[lens]'`), it reads the same.
"""

import torch

import icgd
from icgd.errors import MissingExtraError
from icgd.exports.transformer_lens import open_in_transformer_lens

STEP_SIZE = 0.5


def real_gradient(X, y, weights):
    """The gradient of the loss for weights_1, by autograd."""
    weights = weights.clone().requires_grad_()
    first, second = weights[:6].view(3, 2), weights[6:].view(1, 3)
    loss = ((X @ first.T).tanh() @ second.T - y[:, None]).square().mean() / 2
    return torch.autograd.grad(loss, weights)[0][:6]


def main():
    """Two steps on a network of three hidden units, in a transformer of softmax attention."""
    problem = icgd.Problem(
        target=icgd.MLP(widths=(2, 3, 1), activation="tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=STEP_SIZE, box=3.0),
        domain=icgd.Domain(x=2.0, y=2.0),
    )
    compiled = icgd.compile(problem, "softmax-stack", n_steps=2)
    X = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = X.sin().sum(1)
    run = compiled.run(X, y, seed=0, backend="dense", trace=True)
    run.plot_stream(path="known_algorithm.png")

    for slot, stream in run.trace.items():
        changed = stream.diff(dim=0).flatten(1).any(1).nonzero().flatten() + 1
        if len(changed):
            print(f"{slot} is written by layers {changed.tolist()}")
    stream = run.trace["weights_1"][:, 0]  # the weights are kept in token 0
    moved = next(after - stream[0] for after in stream if not after.equal(stream[0]))
    real = real_gradient(X, y, run.parameters[0])
    print(f"gradient in the stream, off autograd by {(-moved / STEP_SIZE - real).abs().max():.1e}")

    try:
        lens = open_in_transformer_lens(compiled)
    except MissingExtraError as missing:
        return print(missing)
    trained = lens.parameters(lens.run(lens.prompt(compiled.task(X, y, seed=0))))
    print(f"TransformerLens, off by {(trained - run.parameters[-1]).abs().max():.1e}")


if __name__ == "__main__":
    main()
