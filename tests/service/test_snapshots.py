"""Snapshots: what a copy of a folder holds, and that it lives and dies with its job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import snapshots
from service.errors import ProblemError
from service.settings import Settings
from tests.service.support import Service, running_service

PLENTY = 1 << 30
SCRIPT = "print('step 1 val_loss 0.5')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pkg" / "model.py").write_text("x = 1\n")
    return folder


def files(folder: Path) -> list[str]:
    """Everything below a folder that is no folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def copied(folder: Path, max_bytes: int = PLENTY) -> Path:
    copy = folder.parent / "copies" / "one"
    snapshots.take(folder, copy, max_bytes, folder / "home")
    return copy


def test_a_copy_leaves_out_git_and_what_is_ignored_as_git_does(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.pt\n!best.pt\n/data/\nlogs/\n# comment\n\\#odd\n")
    for name in (
        "a.pt",
        "best.pt",
        "data/x",
        "pkg/data/y",
        "logs/z",
        "pkg/logs/z",
        "#odd",
        "pkg/.gitignore",
        "pkg/s.bin",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("*.bin\n!a.pt\n" if name == "pkg/.gitignore" else "x")
    (folder / "pkg" / "a.pt").write_text("kept by the nearer file")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=folder, check=True, capture_output=True, text=True
    )

    assert files(copied(folder)) == sorted(listed.stdout.split("\0")[:-1])


def test_the_ignore_file_of_the_repository_above_counts_too(folder: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("/pkg/secret\n*.tmp\n")
    (folder / "pkg" / "secret").write_text("x")
    (folder / "pkg" / "x.tmp").write_text("x")

    assert files(copied(folder / "pkg")) == ["model.py"]


def test_a_line_that_is_no_pattern_is_passed_over_as_git_does(folder: Path) -> None:
    (folder / ".gitignore").write_text("!\nx[z-a]\n***/a\n\\\n/\n*.pt\n")
    (folder / "a.pt").write_text("x")

    assert files(copied(folder)) == [".gitignore", "pkg/model.py", "train.py"]


def test_a_tree_without_end_is_refused_at_once(folder: Path) -> None:
    deepest = folder
    for _ in range(snapshots.MAX_DEPTH + 1):
        deepest = deepest / "d"
        deepest.mkdir()

    with pytest.raises(ProblemError) as refusal:
        copied(folder)

    assert f"lies more than {snapshots.MAX_DEPTH} folders deep" in refusal.value.errors[0].message
    assert not (folder.parent / "copies").exists()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"line\nbreak"])
def test_a_name_that_is_no_text_is_copied_and_can_be_told(folder: Path, name: bytes) -> None:
    Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(b"x" * 2000)  # noqa: PTH118 - bytes

    assert os.fsdecode(name) in files(copied(folder))
    with pytest.raises(ProblemError) as refusal:
        snapshots.check(folder, 1000, folder / "home")

    refusal.value.errors[0].message.encode()
    assert "\n" not in refusal.value.errors[0].message


def test_links_stay_links_and_nothing_outside_is_copied(folder: Path) -> None:
    outside = folder.parent / "data"
    outside.mkdir()
    (outside / "big").write_text("not copied")
    (folder / "in").symlink_to("pkg")
    (folder / "in_full").symlink_to(folder / "pkg" / "model.py")
    (folder / "out").symlink_to("../data")
    (folder / "nowhere").symlink_to("gone")
    (folder / "circle").symlink_to(".")

    copy = copied(folder)

    assert (copy / "in").resolve() == copy / "pkg"
    assert (copy / "in_full").resolve() == copy / "pkg" / "model.py"
    assert (copy / "out").readlink() == outside
    assert (copy / "nowhere").is_symlink()
    assert (copy / "circle").resolve() == copy
    assert files(copy) == ["circle", "in", "in_full", "nowhere", "out", "pkg/model.py", "train.py"]


def test_our_own_home_within_the_folder_is_left_out(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home" / "client.json").write_text("a token")
    (folder / "pkg" / "home").mkdir()
    (folder / "pkg" / "home" / "mine").write_text("x")

    assert files(copied(folder)) == ["pkg/home/mine", "pkg/model.py", "train.py"]


def test_modes_stay_and_pipes_are_left_out(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    os.mkfifo(folder / "pipe")

    copy = copied(folder)

    assert os.access(copy / "run.sh", os.X_OK)
    assert not (copy / "pipe").exists()


def test_a_folder_that_is_too_large_is_refused_with_what_makes_it_so(folder: Path) -> None:
    (folder / "weights").mkdir()
    (folder / "weights" / "w.bin").write_bytes(b"x" * (3 << 20))

    with pytest.raises(ProblemError, match=r"holds 3 MiB, and 1 are allowed .*weights 3 MiB.*\.gitignore"):
        copied(folder, 1 << 20)

    assert not (folder.parent / "copies").exists()


def test_what_cannot_be_copied_is_named_and_nothing_is_left(folder: Path) -> None:
    (folder / "large").write_bytes(b"x" * 4096)
    copy = folder.parent / "copies" / "one"
    text = f"""
import resource, pathlib
from service import snapshots
from service.errors import ProblemError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    snapshots.take(pathlib.Path({str(folder)!r}), pathlib.Path({str(copy)!r}), 1 << 30, pathlib.Path("/none"))
except ProblemError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)

    assert "large' cannot be copied: File too large" in run.stdout
    assert files(folder.parent / "copies") == []


def test_copies_without_a_job_are_swept_when_they_are_old(tmp_path: Path) -> None:
    for name in ("known", "orphan", "orphan.part"):
        (tmp_path / name / "locked").mkdir(parents=True)
        (tmp_path / name / "locked" / "x").write_text("x")
        (tmp_path / name / "locked").chmod(0)

    snapshots.sweep(tmp_path, lambda name: name == "known")
    all_young = sorted(path.name for path in tmp_path.iterdir())
    snapshots.sweep(tmp_path, lambda name: name == "known", older_than_s=-1)
    snapshots.sweep(tmp_path / "missing", lambda _: False)

    assert all_young == ["known", "orphan", "orphan.part"]
    assert [path.name for path in tmp_path.iterdir()] == ["known"]


# Over HTTP


def spec(folder: Path, **keys: Any) -> dict[str, Any]:
    return {
        "workload": {"command": ["python", "train.py", "{lr}"], "folder": str(folder)},
        "search": {"lr": {"choices": [0.1, 0.2]}},
        "metrics": {"stdout": r"step (?P<step>\d+) val_loss (?P<val_loss>\S+)"},
        "snapshot": True,
        **keys,
    }


def copies(settings: Settings) -> list[str]:
    return sorted(path.name for path in settings.snapshots.iterdir()) if settings.snapshots.exists() else []


def submit(client: httpx.Client, content: dict[str, Any], **headers: str) -> httpx.Response:
    return client.post("/v1/jobs", json=content, headers=headers)


def test_a_job_runs_in_a_copy_that_goes_with_it(service: Service, sqlite_settings: Settings, folder: Path) -> None:
    with service.client() as client:
        job = submit(client, spec(folder)).json()
        copy = Path(job["resolved"]["workload"]["folder"])
        shutil.rmtree(folder)
        there = files(copy)
        client.post(f"/v1/jobs/{job['id']}/cancel")
        deleted = client.delete(f"/v1/jobs/{job['id']}")

    assert copy == sqlite_settings.snapshots / job["id"]
    assert there == ["pkg/model.py", "train.py"]
    assert job["spec"]["workload"]["folder"] == str(folder)
    assert job["resolved"]["snapshot"] is True
    assert deleted.status_code == 204
    assert copies(sqlite_settings) == []


def test_a_retry_makes_no_second_copy(service: Service, sqlite_settings: Settings, folder: Path) -> None:
    with service.client() as client:
        first = submit(client, spec(folder), **{"Idempotency-Key": "k"})
        again = submit(client, spec(folder), **{"Idempotency-Key": "k"})

    assert (first.status_code, again.status_code) == (201, 200)
    assert copies(sqlite_settings) == [first.json()["id"]]


def test_a_dry_run_and_a_refusal_leave_nothing(sqlite_settings: Settings, folder: Path) -> None:
    with running_service(replace(sqlite_settings, snapshot_mib=1)) as service, service.client() as client:
        dry = client.post("/v1/jobs?dry_run=true", json=spec(folder))
        (folder / "big").write_bytes(b"x" * (2 << 20))
        refused = [client.post(f"/v1/jobs{query}", json=spec(folder)) for query in ("", "?dry_run=true")]
        (folder / "big").unlink()
        (folder / ".gitignore").write_text("train.py\n")
        without = submit(client, spec(folder))
        listed = client.get("/v1/jobs").json()["items"]

    assert dry.status_code == 200
    assert [(answer.status_code, answer.json()["errors"][0]["field"]) for answer in refused] == [(422, "snapshot")] * 2
    assert "'train.py' is not in the copy" in without.json()["errors"][0]["message"]
    assert listed == []
    assert copies(sqlite_settings) == []


def test_a_built_in_has_nothing_to_copy(service: Service) -> None:
    with service.client() as client:
        answer = client.post("/v1/jobs", json={"snapshot": True})

    assert answer.json()["errors"][0]["message"].startswith("is for your own code: digits-cnn has no folder")
