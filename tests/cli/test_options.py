from inspect import signature

from icgd.cli.run import run
from icgd.cli.verify import verify


def test_run_and_verify_take_the_same_data_in_the_same_way():
    run_options, verify_options = signature(run).parameters, signature(verify).parameters
    many = ("tasks", "workers", "ray", "chunk_size")
    own = ("out", "stop_below", "rigorous", "weights_out", *many)
    shared = [name for name in verify_options if name not in own]
    assert shared == [name for name in run_options if name not in own]
    # `run` serves fast and may take a folder of tasks; `verify` checks the transformer.
    for name in set(shared) - {"backend", "data"}:
        assert run_options[name].default == verify_options[name].default
