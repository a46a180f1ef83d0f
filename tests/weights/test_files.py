import json
import os
import pickletools
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import icgd
from icgd.errors import FileError, SizeError, UnknownNameError
from icgd.problems import kernel_machine as kernels
from icgd.problems.kernel_machine import KERNELS, register_kernel
from icgd.weights import files
from icgd.weights.files import is_same_file, require_replaceable, whole_file
from tests import machines
from tests.campaigns.compiled_files import ORDERS, data_for
from tests.campaigns.compiled_files import compiled as compiled_order

PROBLEM = icgd.Problem(
    target=icgd.MLP((2, 3, 1), "silu"),
    loss="huber",
    update=icgd.GradientStep(step_size=0.1, box=2.0),
    domain=icgd.Domain(x=1.0, y=1.0),
)


@pytest.fixture(scope="module")
def compiled() -> icgd.Compiled:
    return icgd.compile(PROBLEM, "relu-stack", n_steps=2, pieces=8)


@pytest.fixture
def path(compiled, tmp_path):
    path = tmp_path / "run.safetensors"
    compiled.save(path)
    return path


def metadata_of(path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def rewrite(path, **changes) -> None:
    """Write the file again with other metadata; None leaves an entry out."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {**file.metadata(), **changes}
    save_file(tensors, path, {key: value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize("weights", [True, False, None, "dense", "sparse", "none"])
def test_what_was_saved_is_what_is_loaded(compiled, tmp_path, weights):
    path = tmp_path / "run.safetensors"
    compiled.save(path, weights=weights)
    assert icgd.load(path) == compiled


def test_look_ups_and_registers_survive_a_file(tmp_path):
    path = tmp_path / "run.safetensors"
    saved = icgd.compile(PROBLEM, n_steps=2, construction="softmax-stack", registers=64)
    saved.save(path, weights=False)
    assert icgd.load(path) == saved
    assert icgd.load(path).program.n_registers == 64


def test_a_loaded_run_gives_the_same_numbers(compiled, path):
    x, y = torch.rand(4, 2).double(), torch.rand(4, 1).double()
    assert torch.equal(icgd.load(path).run(x, y).parameters, compiled.run(x, y).parameters)


def test_the_weights_in_the_file_are_the_transformers(compiled, path):
    with safe_open(path, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    built = dict(compiled.transformer().named_parameters())
    assert stored.keys() == built.keys()
    assert all(torch.equal(stored[name], built[name]) for name in built)


def test_layout_and_program_can_be_read_without_icgd(path):
    program = json.loads(metadata_of(path)["program"])
    assert program["slots"][0] == {"name": "x", "shape": [2], "role": "INPUT"}
    assert len(program["block"]) == 6


@pytest.fixture
def sparse(compiled, tmp_path):
    path = tmp_path / "sparse.safetensors"
    compiled.save(path, weights="sparse")
    return path


def dense_of(path) -> dict[str, torch.Tensor]:
    """The dense weights that the sparse ones of a file stand for."""
    layers, found = json.loads(metadata_of(path)["layers"])["layers"], load_file(path)
    for name, layer in layers.items():
        for part, shape in layer["shapes"].items():
            indices, values = (found.pop(f"{name}.{part}.{kind}") for kind in ("indices", "values"))
            assert indices.dtype == torch.int32
            assert (values != 0.0).all()
            found[f"{name}.{part}"] = torch.sparse_coo_tensor(
                indices, values, shape, check_invariants=True
            ).to_dense()
    return found


@pytest.mark.parametrize("name", ORDERS)
def test_sparse_weights_are_the_entries_of_the_dense_ones(name, tmp_path):
    run, path = compiled_order(name), tmp_path / "run.safetensors"
    run.save(path, weights="sparse")
    assert icgd.load(path) == run
    found, dense = dense_of(path), dict(run.block().named_parameters())
    assert found.keys() == dense.keys()
    for name, weights in found.items():
        own = dense[name][tuple(slice(size) for size in weights.shape)]
        assert torch.equal(weights, own)  # features that are 0 in all heads are left out
        assert dense[name].count_nonzero() == weights.count_nonzero()


def test_a_schedule_has_layers_of_its_own_in_every_step(tmp_path):
    path, step = tmp_path / "run.safetensors", icgd.GradientStep((0.1, 0.2, 0.3), box=2.0)
    problem = icgd.Problem(PROBLEM.target, "huber", step, PROBLEM.domain)
    compiled = icgd.compile(problem, "relu-stack", n_steps=3, pieces=8)
    compiled.save(path, weights="sparse")
    assert dense_of(path).keys() == dict(compiled.transformer().named_parameters()).keys()
    about = json.loads(metadata_of(path)["layers"])
    steps = [[*about["common"], *end] for end in about["ends"]]
    names = [name for part in (*steps, about["final"]) for name in part]
    titles = [about["layers"][name]["title"] for name in names]
    assert titles == [layer.title for layer in compiled.program.unrolled()]
    assert len(steps) == about["n_repeats"] == 3


@pytest.mark.parametrize("largest", [10**9, 100_000, 1000])
def test_by_default_a_file_has_the_first_weights_that_are_small(
    compiled, tmp_path, monkeypatch, largest
):
    monkeypatch.setattr("icgd.compiled.STORED_WEIGHTS", largest)
    summary, path = compiled.summary(), tmp_path / "run"
    assert 8 * summary.parameters > 100_000 > 20 * summary.nonzeros > 1000
    compiled.save(path)
    expected = {10**9: "dense", 100_000: "sparse", 1000: "none"}[largest]
    compiled.save(tmp_path / "expected", weights=expected)
    assert path.read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("weights", ["dence", ""])
def test_unknown_weights_are_named(compiled, tmp_path, weights):
    near = " Did you mean 'dense'?" if weights == "dence" else ""
    message = f"Unknown kind of weights {weights!r}; known are dense, sparse, none.{near}"
    with pytest.raises(UnknownNameError, match=rf"^{re.escape(message)}$"):
        compiled.save(tmp_path / "run", weights=weights)
    assert not list(tmp_path.iterdir())


def test_sparse_weights_beyond_memory_are_refused(compiled, tmp_path, monkeypatch):
    machines.of_memory(monkeypatch, 1000, "half")
    message = r"A file of [\d,]+ weights that are not 0 takes about .*, half\. Save with weights='n"
    with pytest.raises(SizeError, match=message):
        compiled.save(tmp_path / "run", weights="sparse")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["index", "layers", "no layers", "end"])
def test_a_damaged_sparse_file_is_noticed(sparse, damage):
    content = bytearray(sparse.read_bytes())
    if damage == "index":
        content[-1] ^= 1
        sparse.write_bytes(content)
    elif damage == "end":
        sparse.write_bytes(content[:-4])
    else:
        text = metadata_of(sparse)["layers"].replace('"mlp"', '"map"')
        rewrite(sparse, layers=None if damage == "no layers" else text)
    with pytest.raises(FileError, match="is damaged"):
        icgd.load(sparse)


def test_a_file_is_no_pickle(path):
    with pytest.raises(ValueError, match="opcode"):
        list(pickletools.genops(path.read_bytes()))


@contextmanager
def a_disk_of(n_bytes):
    """A disk without room: no file of this process may become longer."""
    before, handler = getrlimit(RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    setrlimit(RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_failed_write_leaves_nothing_behind(compiled, tmp_path):
    with (
        a_disk_of(5000),
        pytest.raises(FileError, match=r"^Cannot write .*run: File too large\.$"),
    ):
        compiled.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(compiled, path):
    before = path.read_bytes()
    with a_disk_of(5000), pytest.raises(FileError):
        compiled.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_named(compiled, tmp_path):
    with pytest.raises(FileError, match=r"Cannot write .*nowhere/run: No such file or directory\."):
        compiled.save(tmp_path / "nowhere" / "run")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"There is no file .*absent\."):
        icgd.load(tmp_path / "absent")


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80\x04K\x01.", b"\xff" * 100])
def test_junk_is_called_damaged(tmp_path, content):
    path = tmp_path / "junk"
    path.write_bytes(content)
    with pytest.raises(FileError, match="junk is damaged or not a safetensors file"):
        icgd.load(path)


def test_a_truncated_file_is_called_damaged(path):
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileError, match="is damaged or not a safetensors file"):
        icgd.load(path)


def test_a_flipped_bit_in_a_weight_is_noticed(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match="its checksum does not match"):
        icgd.load(path)


def test_a_changed_program_is_noticed(path):
    program = metadata_of(path)["program"].replace('"n_steps": 2', '"n_steps": 3')
    rewrite(path, program=program)
    with pytest.raises(FileError, match="its checksum does not match"):
        icgd.load(path)


def test_a_foreign_file_is_called_foreign(tmp_path):
    path = tmp_path / "foreign"
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(FileError, match=r"foreign is a safetensors file, but not one that icgd"):
        icgd.load(path)


@pytest.mark.parametrize("version", ["1", "99"])
def test_another_format_is_named(path, version):
    rewrite(path, icgd=version)
    with pytest.raises(
        FileError,
        match=f"has file format {version}; .* reads formats 5, 6, 7, 8, {files.FORMAT}",
    ):
        icgd.load(path)


FORMAT_5 = Path(__file__).parents[1] / "golden" / "format_5"
"""What was written before format 6, and what it ran to."""


@pytest.mark.parametrize("name", ["network", "kernel_machine"])
def test_a_file_of_format_5_still_gives_the_same_numbers(name):
    known = json.loads((FORMAT_5 / "runs.json").read_text(encoding="utf-8"))
    path, expected = FORMAT_5 / f"{name}.safetensors", known["runs"][name]
    assert metadata_of(path)["icgd"] == "5"
    run = icgd.load(path).run(
        known["x"], known["y"], queries=known["queries"], initial=expected["initial"]
    )
    for found, before in (("parameters", run.parameters[-1]), ("predictions", run.predictions)):
        wanted = torch.tensor(expected[found], dtype=torch.float64)
        assert (before - wanted).abs().max() <= 1e-15


def test_a_chain_of_an_older_format_is_to_be_compiled_again():
    message = r"format 5, in which cot-network had a head for every entry .* Compile it again"
    with pytest.raises(FileError, match=message):
        icgd.load(FORMAT_5 / "chain.safetensors")


def test_a_linear_model_of_format_5_had_one_number_of_examples():
    message = r"file format 5, in which cot-glm was made for one number .* writes format 9"
    with pytest.raises(FileError, match=message):
        icgd.load(FORMAT_5 / "linear_model.safetensors")


def test_a_kernel_that_is_not_registered_is_named(tmp_path):
    register_kernel("forgotten", lambda u, w: u @ w.mT)
    machine = icgd.KernelMachine(2, "forgotten")
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0))
    icgd.compile(problem, n_steps=2).save(tmp_path / "run.safetensors")
    del KERNELS["forgotten"]
    with pytest.raises(FileError, match="needs what is not known here: Unknown kernel 'forgotten'"):
        icgd.load(tmp_path / "run.safetensors")


def test_what_is_stated_of_a_kernel_is_part_of_its_registration_and_not_of_a_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    register_kernel("stated", lambda u, w: u @ w.mT, lipschitz=lambda r: r)
    machine = icgd.KernelMachine(2, "stated")
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0))
    icgd.compile(problem, n_steps=2).save(tmp_path / "run.safetensors")
    again = icgd.load(tmp_path / "run.safetensors")
    assert again.certificate().stated == ("stated",)
    register_kernel("stated", lambda u, w: u @ w.mT)
    again = icgd.load(tmp_path / "run.safetensors")
    assert (again.certificate().stated, again.certificate().estimated) == ((), ("stated",))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(FileError, match=r" is a folder; a file that icgd wrote is expected\.$"):
        icgd.load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"problem": None}, {"problem": "["}, {"program": None}, {"digest": None}, {"digest": "0"}],
)
def test_texts_that_are_not_those_of_the_checksum_are_noticed(path, changes):
    rewrite(path, **changes)
    with pytest.raises(FileError, match=r"is damaged: its checksum does not match\. Compile it ag"):
        icgd.load(path)


@pytest.mark.parametrize(
    "program", ["{}", '{"construction": "x", "block": [{"verb": "Fly"}]}', "no JSON"]
)
def test_a_program_of_a_version_with_other_instructions_is_refused(path, program):
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    texts = {"problem": metadata_of(path)["problem"], "program": program}
    rewrite(path, **texts, digest=files.checksum(texts, tensors))
    with pytest.raises(FileError, match="does not hold a run that this version of icgd can read"):
        icgd.load(path)


@pytest.mark.parametrize("name", ORDERS)
def test_every_construction_has_the_same_listing_and_the_same_run_after_a_file(tmp_path, name):
    run, path = compiled_order(name), tmp_path / "run.safetensors"
    run.save(path)
    loaded, (x, y) = icgd.load(path), data_for(run)
    assert loaded == run
    assert loaded.listing() == run.listing()
    before, after = (each.run(x, y, queries=x, seed=1) for each in (run, loaded))
    assert torch.equal(before.parameters, after.parameters)
    assert torch.equal(before.predictions, after.predictions)


TENSORS = {
    "wide": torch.tensor([[1.5, -2.0], [float("nan"), 3.0]], dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "one number": torch.tensor(7),
    "flags": torch.tensor([True, False, True]),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "größe": torch.arange(3, dtype=torch.int16),
}


def test_tensors_come_back_bit_for_bit(tmp_path):
    files.write_tensors(tmp_path / "out", TENSORS, {"b": "ä\n"})
    metadata, found = files.read_tensors(tmp_path / "out")
    assert metadata == {"b": "ä\n"}
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert files.checksum({}, found) == files.checksum({}, TENSORS)


def test_the_usual_device_of_a_program_changes_no_file(compiled, path, tmp_path):
    with torch.device("meta"):
        assert icgd.load(path) == compiled
        compiled.save(tmp_path / "again")
    assert icgd.load(tmp_path / "again") == compiled


def test_equal_runs_have_equal_files(tmp_path):
    step = icgd.GradientStep(0.1, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 2, 1)), "squared", step, icgd.Domain(1.0, 1.0))
    for name in ("a", "b", "c"):
        icgd.compile(problem, "relu-stack", n_steps=1).save(tmp_path / f"{name}.safetensors")
    first, *others = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert all(other == first for other in others)
    assert icgd.load(tmp_path / "a.safetensors").program.n_steps == 1


def write_and_fail(path, problem):
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
        raise problem


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "out"
    with whole_file(path) as temporary:
        temporary.write_bytes(b"half")
        assert not path.exists()
    assert path.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError])
def test_an_interruption_keeps_the_old_file_and_leaves_nothing_else(tmp_path, problem):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(problem):
        write_and_fail(path, problem())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_an_error_of_ours(tmp_path):
    with pytest.raises(FileError, match=r"Cannot write .*out: No space left on device\."):
        write_and_fail(tmp_path / "out", OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_refused_and_stays_what_it_is(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"pipe: it is not an ordinary file\.$"):
        write_and_fail(path, AssertionError())
    assert path.is_fifo()


def test_a_link_is_followed(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with whole_file(link) as temporary:
        temporary.write_bytes(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_file_that_was_written_privately_gets_the_usual_rights(tmp_path):
    (tmp_path / "usual").touch()
    with whole_file(tmp_path / "out") as temporary:
        temporary.chmod(0o600)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_threads_that_write_the_same_file_do_not_meet(tmp_path):
    path, contents = tmp_path / "out", [bytes([65 + i]) * 100_000 for i in range(4)]

    def write(content):
        for _ in range(25):
            with whole_file(path) as temporary:
                temporary.write_bytes(content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, contents))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_that_is_replaced_keeps_its_rights(tmp_path, mode):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(mode)
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == mode


def test_a_read_only_file_is_refused_also_for_those_who_may_do_everything(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with pytest.raises(FileError, match=r"^Cannot write .*out: it is read-only\.$"):
        write_and_fail(path, AssertionError())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_would_not_be_replaced_is_known_before(tmp_path):
    require_replaceable(tmp_path / "absent")
    (tmp_path / "usual").touch()
    require_replaceable(tmp_path / "usual")
    (tmp_path / "fixed").touch(0o444)
    for name, problem in (("fixed", "it is read-only"), ("a" * 300, "File name too long")):
        with pytest.raises(FileError, match=rf": {problem}\.$"):
            require_replaceable(tmp_path / name)


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("ä" * 127)
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["a" * 300, "no/folder", "a\0b"])
def test_a_name_that_cannot_be_is_an_error_of_ours(tmp_path, name):
    with pytest.raises(FileError, match=r"^Cannot write "):
        write_and_fail(tmp_path / name, AssertionError())


def test_a_loop_of_links_is_an_error_of_ours(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(FileError, match=r"^Cannot write .*a: "):
        write_and_fail(tmp_path / "a", AssertionError())


def test_what_is_being_written_stays(tmp_path):
    with whole_file(tmp_path / "slow") as slow:
        slow.write_bytes(b"slow")
        with whole_file(tmp_path / "fast") as fast:
            fast.write_bytes(b"fast")
        assert slow.exists()
    assert (tmp_path / "slow").read_bytes() == b"slow"


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *given, real=real, name=name: calls.append(name) or real(*given)
        )
    with whole_file(tmp_path / "out") as temporary:
        temporary.write_bytes(b"new")
    assert calls == ["fsync", "replace", "fsync"]


def test_two_names_of_one_file_are_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").touch()
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "hard").hardlink_to("one")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "other").touch()
    assert all(is_same_file("one", name) for name in ("one", "./one", "link", "hard"))
    assert is_same_file("new", tmp_path / "new")
    assert is_same_file("round", "round")
    assert not any(is_same_file("one", name) for name in ("other", "new", "round", "zero\0"))
    assert not is_same_file("new", "zero\0")


def test_how_tables_are_read_is_kept_and_guarded_by_the_checksum(path, tmp_path):
    compiled = icgd.load(path)
    assert compiled.table is None
    table = {"target": ["b"], "standardize": True, "codes": {"c": ["x", "y"], "day": "date"}}
    other = tmp_path / "other.safetensors"
    replace(compiled, table=table).save(other)
    assert icgd.load(other).table == table
    assert icgd.load(other) == compiled
    rewrite(other, table=json.dumps({**table, "standardize": False}))
    with pytest.raises(FileError, match="its checksum does not match"):
        icgd.load(other)
