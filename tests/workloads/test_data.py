"""Preparing and caching data; what the splits promise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads import bytelm, digits, tabular
from workloads.data import Arrays, DataUnavailable, cached, folder, sklearn_file, stratified_split


def numbers() -> Arrays:
    return {"numbers": np.arange(5)}


def refuse() -> Arrays:
    raise AssertionError("should have come from the cache")


def only_file(path: Path) -> Path:
    (file,) = path.iterdir()
    return file


def test_data_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X5TUNE_DATA", str(tmp_path / "made" / "when needed"))
    cached("n", "1", numbers)
    assert cached("n", "1", refuse)["numbers"].tolist() == [0, 1, 2, 3, 4]


def test_another_key_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X5TUNE_DATA", str(tmp_path))
    cached("n", "1", numbers)
    with pytest.raises(AssertionError):
        cached("n", "2", refuse)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"x" * 100])
def test_a_damaged_cache_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setenv("X5TUNE_DATA", str(tmp_path))
    cached("n", "1", numbers)
    file = only_file(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert cached("n", "1", numbers)["numbers"].tolist() == [0, 1, 2, 3, 4]
    assert cached("n", "1", refuse)["numbers"].tolist() == [0, 1, 2, 3, 4]


def test_a_flipped_byte_in_the_array_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X5TUNE_DATA", str(tmp_path))
    cached("n", "1", lambda: {"ones": np.ones(1000, dtype=np.uint8)})
    file = only_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[600] ^= 0xFF
    file.write_bytes(bytes(content))
    assert cached("n", "1", lambda: {"ones": np.ones(1000, dtype=np.uint8)})["ones"].sum() == 1000


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X5TUNE_DATA", str(tmp_path))
    (tmp_path / "n-1.npz").mkdir()
    assert cached("n", "1", numbers)["numbers"].tolist() == [0, 1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["n-1.npz"]


def test_a_folder_that_cannot_be_made_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("X5TUNE_DATA", str(tmp_path / "file" / "below"))
    assert cached("n", "1", numbers)["numbers"].tolist() == [0, 1, 2, 3, 4]


def test_the_fallback_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("X5TUNE_DATA")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert folder() == tmp_path / f"x5tune-data-{os.getuid()}"
    assert folder().stat().st_mode & 0o777 == 0o700


def test_a_fallback_folder_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("X5TUNE_DATA")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"x5tune-data-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataUnavailable, match="does not belong to this user"):
        folder()


SLOW_PREPARATION = """
import time
import numpy as np
from workloads.data import cached

def build():
    time.sleep(0.3)
    return {"numbers": np.arange(100_000)}

print(cached("slow", "1", build)["numbers"].sum(), cached("slow", "1", lambda: 1 / 0)["numbers"].sum())
"""


def test_processes_that_prepare_at_once_agree(tmp_path: Path) -> None:
    environment = {**os.environ, "X5TUNE_DATA": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SLOW_PREPARATION]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    printed = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert printed == {"4999950000 4999950000\n"}
    assert only_file(tmp_path).name == "slow-1.npz"


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable, match=r"no .*nowhere\.csv"):
        sklearn_file("nowhere.csv")


def test_a_stratified_split_is_disjoint_complete_in_proportion_and_always_the_same() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    parts = stratified_split(labels, [0.6, 0.2, 0.2])
    assert np.sort(np.concatenate(parts)).tolist() == list(range(160))
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[60, 30, 6], [20, 10, 2], [20, 10, 2]]
    assert all((a == b).all() for a, b in zip(parts, stratified_split(labels, [0.6, 0.2, 0.2]), strict=True))


def test_digits_are_split_in_proportion() -> None:
    arrays = digits.prepare()
    counts = [np.bincount(arrays[f"{split}_labels"]) for split in digits.SPLITS]
    assert sum(count.sum() for count in counts) == 1797
    assert all(np.abs(count / count.sum() - 0.1).max() < 0.01 for count in counts)
    assert (arrays["train_images"].min(), arrays["train_images"].max()) == (0, 1)
    assert arrays["train_images"].shape[1:] == (1, 8, 8)


def test_no_digit_is_in_two_splits() -> None:
    arrays = digits.prepare()
    seen = [{image.tobytes() for image in arrays[f"{split}_images"]} for split in digits.SPLITS]
    assert not seen[0] & seen[1]
    assert not (seen[0] | seen[1]) & seen[2]


def test_tabular_features_are_standardized_on_the_training_part() -> None:
    arrays = tabular.prepare()
    assert np.abs(arrays["train_features"].mean(0)).max() < 1e-5
    assert np.abs(arrays["train_features"].std(0) - 1).max() < 1e-5
    assert sum(len(arrays[f"{split}_labels"]) for split in tabular.SPLITS) == 569


def test_no_source_file_is_in_two_splits() -> None:
    files = bytelm.source_files()
    parts = bytelm.split_files(files)
    names = [path.name for part in parts.values() for path in part]
    assert sorted(names) == sorted(path.name for path in files)
    assert bytelm.split_files(list(reversed(files))) == parts


def test_byte_windows_are_source_text() -> None:
    arrays = bytelm.prepare()
    assert arrays["train"].shape == (bytelm.TRAIN_SAMPLES, bytelm.TOKENS_PER_SAMPLE + 1)
    assert arrays["test"].shape == (bytelm.HELD_OUT_SAMPLES, bytelm.TOKENS_PER_SAMPLE + 1)
    assert b"def " in arrays["train"].tobytes()
