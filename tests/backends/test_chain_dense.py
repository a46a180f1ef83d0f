import torch

from icgd.backends.chain import DenseGenerator
from icgd.problems.mlp import MLP
from tests.backends.chain_cases import problem_of, program_of


def test_a_block_is_a_column_of_its_rows():
    program = program_of(problem_of(MLP((2, 2), "relu")))
    generator = DenseGenerator(program, torch.zeros(1, 2, dtype=torch.float64))
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    block = generator.encode({"weights": weights, "is_backward": 1.0})
    assert block.tolist() == [[0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 1, 0]]
    assert torch.equal(generator.row(block, "weights"), weights)


def test_one_block_of_layers_serves_networks_of_every_depth():
    """The weights depend on the width, not on the number of layers."""
    sizes = set()
    for depth in (2, 5):
        program = program_of(problem_of(MLP((3,) * (depth + 1), "relu")))
        layers = DenseGenerator(program, torch.zeros(1, 3, dtype=torch.float64)).layers
        sizes.add(sum(parameter.numel() for parameter in layers.parameters()))
    assert len(sizes) == 1
