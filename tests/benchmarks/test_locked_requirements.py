import re
from pathlib import Path

from benchmarks.locked_requirements import hashes, written

ROOT = Path(__file__).parents[2]


def part(name: str, version: str, sha256: str) -> dict:
    archive = {"archive_info": {"hashes": {"sha256": sha256}}}
    return {"metadata": {"name": name, "version": version}, "download_info": archive}


def test_every_file_has_its_hash_and_a_folder_has_none():
    folder = {"metadata": {"name": "icgd", "version": "1"}, "download_info": {"dir_info": {}}}
    parts = [part("Two_Parts", "0.1", "ef"), part("one", "1.2+cpu", "ab"), folder]
    assert hashes(parts) == {"two-parts==0.1": "ef", "one==1.2": "ab"}


def test_packages_are_written_in_order():
    text = written({"two==0.1": "ef", "one==1.2": "ab"}, "Linux x86_64", "3.11")
    assert text.startswith("# The very files that the tests run with, on Linux x86_64 with Python")
    assert text.endswith("one==1.2 --hash=sha256:ab\ntwo==0.1 --hash=sha256:ef\n")


def test_versions_with_hashes_are_those_of_the_constraints():
    hashed, constrained = (
        set(re.findall(r"^([a-z0-9_.-]+==[^ \n]+)", (ROOT / name).read_text("utf-8").lower(), re.M))
        for name in ("requirements.txt", "constraints.txt")
    )
    assert len(hashed) > 40
    assert hashed <= {re.sub(r"[-_.]+(?=.*==)", "-", pin) for pin in constrained}
