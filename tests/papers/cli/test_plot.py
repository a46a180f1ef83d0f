from pathlib import Path

from icgd_papers.training.logs import Log, write_json


def test_a_log_is_drawn_beside_it_or_where_one_likes(command):
    Path("run").mkdir()
    write_json(
        Log(tuple({"step": float(k), "loss": 1.0 / (k + 1)} for k in range(3))),
        Path("run/log.json"),
    )
    for arguments, path in ((["run"], "run/log.png"), (["run", "-o", "a.png"], "a.png")):
        assert command("plot", *arguments).stdout == f"Saved {path}\n"
        assert Path(path).read_bytes().startswith(b"\x89PNG")
    refusal = command("plot", "none").refusal()
    assert refusal == "Cannot read none/log.json: No such file or directory."
