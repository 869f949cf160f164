"""Metrics from the files of scripts that cannot be changed: what loggers write, and what goes wrong with files."""

from __future__ import annotations

import csv
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.support import job, probe_config, short_folder, slot_setup
from tests.tuner.test_user_code import outcome, play, reason, values
from tuner.assignment import SlotReport
from tuner.cluster import Cluster
from tuner.jobspec import MetricSource, UserCode
from tuner.metric_files import CsvFile, EventFiles, JsonLinesFile, metric_file
from tuner.probe_lines import MAX_LINE_BYTES, Lines, ReportFile
from tuner.records import Outcome
from tuner.reports import ReportBook, UnreadableReportError
from tuner.study import CannotRunError, decide
from workloads.contract import Fidelity


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as found:
        yield found


def told(reports: Sequence[Mapping[str, Any]], metric: str = "val_loss") -> list[tuple[Any, Any]]:
    """Step and value of the reports that have the metric."""
    return [(report["step"], report["metrics"][metric]) for report in reports if metric in report["metrics"]]


# CSV


def test_the_csv_of_lightning_has_empty_cells_and_two_rows_a_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "epoch,step,train_loss,val_loss\n0,49,2.5,\n0,93,,1.25\n1,99,2.0,\n1,187,,1.0\n"
    )
    book = ReportBook(Fidelity("steps", 187, 2), "val_loss", 1)

    points = [book.add(report) for report in CsvFile(tmp_path / "metrics.csv", "val_loss").read()]

    assert [(point.step, point.value.number) for point in points if point] == [(187, 1.0)]
    assert book.health == {"train_loss": 2.0}
    assert not book.warnings


def test_the_csv_of_keras_counts_epochs_from_0(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("epoch,accuracy,loss,val_loss\n0,0.5,2.0,1.5\n1,0.6,1.5,1.25\n")
    book = ReportBook(Fidelity("epochs", 2, 2), "val_loss", 1)

    points = [book.add(report) for report in CsvFile(tmp_path / "log.csv", "val_loss").read()]

    assert [(point.index, point.position, point.value.number) for point in points if point] == [
        (1, 1.0, 1.5),
        (2, 2.0, 1.25),
    ]


def test_epochs_are_not_taken_for_samples(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("epoch,val_loss\n0,1.5\n")
    report = CsvFile(tmp_path / "log.csv", "val_loss").read()[0]

    with pytest.raises(UnreadableReportError, match="it says no samples but epoch"):
        ReportBook(Fidelity("samples", 100, 2), "val_loss", 8).add(report)


def test_a_file_that_does_not_say_how_far_the_run_is_is_refused_with_its_columns(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("lr,val_loss\n0.1,1.5\n")
    report = CsvFile(tmp_path / "log.csv", "val_loss").read()[0]

    with pytest.raises(UnreadableReportError, match=r"log.csv does not say how far.*it has lr, val_loss"):
        ReportBook(Fidelity("steps", 100, 2), "val_loss", 8).add(report)


def test_a_row_that_is_half_written_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    file = CsvFile(path, "val_loss")
    assert file.read() == []
    path.write_text("step,val_loss\n10,0.2")
    assert told(file.read()) == []

    with path.open("a") as more:
        more.write("5\n20,0.125\n30,0.0")

    assert told(file.read()) == [(10.0, 0.25), (20.0, 0.125)]
    assert told(file.read(is_over=True)) == []


def test_a_header_that_grows_rewrites_the_file_and_nothing_is_told_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = CsvFile(path, "val_loss")
    path.write_text("step,val_loss\n1,0.5\n2,0.25\n")
    first = file.read()

    path.write_text("step,val_loss,lr\n1,0.5,\n2,0.25,\n3,0.125,0.1\n")

    assert told(first) == [(1.0, 0.5), (2.0, 0.25)]
    assert told(file.read()) == [(3.0, 0.125)]


def test_a_second_header_within_the_file_renames_the_columns(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("step,val_loss\n1,0.5\nval_loss,step\n0.25,2\n")

    assert told(CsvFile(tmp_path / "m.csv", "val_loss").read()) == [(1.0, 0.5), (2.0, 0.25)]


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_file_that_is_begun_anew_is_read_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text("step,val_loss\n1,0.5\n2,0.25\n")
    file = CsvFile(path, "val_loss")
    file.read()

    text = "step,val_loss\n1,0.75\n2,0.625\n3,0.5\n"
    if how == "truncated":
        path.write_text(text)
    else:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").rename(path)

    assert told(file.read()) == [(1.0, 0.75), (2.0, 0.625), (3.0, 0.5)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_columns_may_be_parted_otherwise_and_cells_quoted(tmp_path: Path, delimiter: str) -> None:
    with (tmp_path / "m.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([["Step", "val/acc@5", "note"], [1, 0.5, f"a{delimiter}b"], [2, "nan", "x"]])

    reports = CsvFile(tmp_path / "m.csv", "val/acc@5").read()

    assert [report["step"] for report in reports] == [1.0, 2.0]
    assert str([report["metrics"] for report in reports]) == "[{'val/acc@5': 0.5}, {'val/acc@5': nan}]"


def test_text_as_a_metric_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("step,val_loss\n1,tensor(0.5)\n")
    report = CsvFile(tmp_path / "m.csv", "val_loss").read()[0]

    with pytest.raises(UnreadableReportError, match=r"metric 'val_loss' is text: 'tensor\(0.5\)'"):
        ReportBook(Fidelity("steps", 100, 2), "val_loss", 8).add(report)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00", b"step,val_loss\n\n\x00,\x00\n", b"a" * (2 << 20)])
def test_what_is_no_csv_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.csv").write_bytes(content)

    assert told(CsvFile(tmp_path / "m.csv", "val_loss").read(is_over=True)) == []


def test_a_line_with_a_progress_bar_in_it_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes(b"step,val_loss\n1,0.5\n 10%|#\r 20%|##\n2,0.25\n")

    assert told(CsvFile(tmp_path / "m.csv", "val_loss").read()) == [(1, 0.5), (2, 0.25)]


def test_a_pipe_or_a_folder_in_the_place_of_the_file_does_not_hold_anybody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert CsvFile(tmp_path / "pipe", "val_loss").read(is_over=True) == []
    assert CsvFile(tmp_path, "val_loss").read(is_over=True) == []


def test_a_large_file_is_read_to_its_end_when_the_run_is_over(tmp_path: Path) -> None:
    rows = 200_000
    (tmp_path / "m.csv").write_text("step,val_loss\n" + "".join(f"{n},{1 / n:.9f}\n" for n in range(1, rows + 1)))
    file = CsvFile(tmp_path / "m.csv", "val_loss")

    first, rest = file.read(), file.read(is_over=True)

    assert 0 < len(first) < rows
    assert len(first) + len(rest) == rows


# JSON lines


def test_json_lines_may_be_flat_or_nested_and_what_says_nothing_is_passed_over(tmp_path: Path) -> None:
    lines = [
        json.dumps({"lr": 0.1, "name": "config"}),
        "not json",
        "[1]",
        json.dumps({"global_step": 10, "train_loss": 2.0}),
        json.dumps({"global_step": 10, "val_loss": 0.5, "note": "x"}),
        json.dumps({"step": 20, "metrics": {"val_loss": 0.25}}),
        '{"step": 30, "val_loss": NaN}',
        json.dumps({"step": 35, "val_loss": None, "train_loss": 1.0}),
        json.dumps({"step": 40, "val_loss": "0.125", "epoch": None}),
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    file = JsonLinesFile(tmp_path / "log.jsonl", "val_loss")

    reports = [*file.read(), *file.read(is_over=True)]

    assert str(told(reports)) == "[(10, 0.5), (20, 0.25), (30, nan), (40, 0.125)]"
    assert [report["metrics"] for report in reports][:2] == [{"lr": 0.1}, {"train_loss": 2.0}]


def test_a_json_line_cut_in_two_is_one_report(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    file = JsonLinesFile(path, "val_loss")
    path.write_text('{"step": 1, "val')
    first = file.read()
    with path.open("a") as more:
        more.write('_loss": 0.5}\n{"step": 2, "val_')

    assert first == []
    assert told(file.read()) == [(1, 0.5)]
    assert told(file.read(is_over=True)) == []


# TensorBoard


def test_the_events_of_torch_are_read_while_they_are_written(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    events = EventFiles(tmp_path)
    assert events.read() == []
    writer = SummaryWriter(str(tmp_path / "runs" / "a"))
    for step in (10, 20):
        writer.add_scalar("val/loss", 1 / step, step)
        writer.add_scalar("train/loss", 2 / step, step)
        writer.add_histogram("weights", __import__("numpy").arange(100), step)
    writer.flush()
    first = events.read(is_over=True)
    writer.add_scalar("val/loss", 0.0, 30)
    writer.close()

    assert told(first, "val/loss") == [(10, pytest.approx(0.1)), (20, pytest.approx(0.05))]
    assert told(first, "train/loss") == [(10, pytest.approx(0.2)), (20, pytest.approx(0.1))]
    assert told(events.read(is_over=True), "val/loss") == [(30, 0.0)]


def test_an_event_file_that_is_cut_off_is_read_up_to_there_and_goes_on_later(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "whole"))
    for step in (1, 2, 3):
        writer.add_scalar("val_loss", 1 / step, step)
    writer.close()
    whole = next((tmp_path / "whole").iterdir())
    content = whole.read_bytes()
    (tmp_path / "cut").mkdir()
    cut = tmp_path / "cut" / whole.name
    cut.write_bytes(content[:-20])
    events = EventFiles(tmp_path / "cut")

    first = events.read(is_over=True)
    with cut.open("ab") as more:
        more.write(content[-20:])

    assert [step for step, _ in told(first)] == [1, 2]
    assert [step for step, _ in told(events.read(is_over=True))] == [3]


def test_what_only_looks_like_an_event_file_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(b"not events at all, by no means")
    (tmp_path / "events.out.tfevents.2").write_bytes(b"")
    (tmp_path / "events.out.tfevents.3").mkdir()
    os.mkfifo(tmp_path / "events.out.tfevents.4")
    (tmp_path / "events.out.tfevents.5").symlink_to("nowhere")
    (tmp_path / "events.out.tfevents.6").symlink_to("/dev/zero")

    assert EventFiles(tmp_path).read(is_over=True) == []


def test_events_that_are_no_numbers_are_passed_over_and_a_file_may_go(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(tmp_path))
    for step, content in enumerate(([1.0, 2.0], "text", 0.5), 1):
        event = Event(step=step)
        scalar = event.summary.value.add(tag="val_loss", tensor=make_tensor_proto(content))
        scalar.metadata.plugin_data.plugin_name = "scalars"
        writer.add_event(event)
    writer.close()
    with (tmp_path / "events.out.tfevents.bad").open("wb") as file:
        RecordWriter(file).write(b"\xff\xff\xff no event")
    events = EventFiles(tmp_path)

    assert told(events.read(is_over=True)) == [(3, 0.5)]
    for path in tmp_path.iterdir():
        path.unlink()
    assert events.read(is_over=True) == []


def test_reading_events_does_not_bring_tensorflow_and_nothing_else_brings_the_reader() -> None:
    import subprocess

    text = (
        "import sys, pathlib, tuner.slot, tuner.metric_files as m\n"
        "assert 'tensorboard' not in sys.modules\n"
        "m.EventFiles(pathlib.Path('.')).read()\n"
        "assert 'tensorboard' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_a_runner_without_the_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    the_job = replace(job(), metrics=MetricSource(tensorboard="."))
    cluster = Cluster(2.0, 0.0, tmp_path)
    decide(the_job, cluster)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(CannotRunError, match=r"pip install 'x5tune\[tensorboard\]'"):
        decide(the_job, cluster)


# In a slot, with real processes


def run(folder: Path, text: str, source: MetricSource, *arguments: str, **changes: Any) -> list[SlotReport]:
    (folder / "train.py").write_text(text)
    code = UserCode(str(folder), argv=(sys.executable, "train.py", *arguments))
    return play(slot_setup(folder / "slot", code=code, metrics=source, **changes), probe_config())


CSV_SCRIPT = """
import csv, os, sys, time
with open(os.path.join(sys.argv[1], "metrics.csv"), "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["step", "val_loss"])
    for step in range(1, 11):
        writer.writerow([step, 1 / step])
        file.flush()
        time.sleep(float(sys.argv[2]))
"""


def test_a_command_is_read_from_the_csv_in_its_run_folder(folder: Path) -> None:
    reports = run(folder, CSV_SCRIPT, MetricSource(csv="metrics.csv"), "{run_dir}", "0")

    assert outcome(reports) == Outcome.OK
    assert [index for index, _ in values(reports)] == [1, 2, 3, 4, 5]


def test_a_command_may_learn_its_run_folder_from_the_environment(folder: Path) -> None:
    text = (
        "import os; open(os.environ['X5TUNE_RUN_DIR'] + '/log.jsonl', 'w').write('{\"step\": 10, \"val_loss\": 0.5}')"
    )

    assert values(run(folder, text, MetricSource(jsonl="log.jsonl"))) == [(5, 0.5)]


def test_a_command_that_is_hopeless_is_ended_while_it_still_writes(folder: Path) -> None:
    text = CSV_SCRIPT + "    time.sleep(600)"

    (folder / "train.py").write_text(text)
    code = UserCode(str(folder), argv=(sys.executable, "train.py", "{run_dir}", "0"))
    reports = play(slot_setup(folder / "slot", code=code, metrics=MetricSource(csv="metrics.csv")), stop_after=6)

    assert [index for index, _ in values(reports)] == [1, 2, 3, 4, 5]


def test_two_runs_side_by_side_and_a_stale_file_never_meet(folder: Path) -> None:
    (folder / "metrics.csv").write_text("step,val_loss\n1,99\n10,99\n")
    (folder / "train.py").write_text(CSV_SCRIPT.replace("1 / step]", "float(sys.argv[3]) / step]"))
    code = UserCode(str(folder), argv=(sys.executable, "train.py", "{run_dir}", "0.05", "{lr}"))
    found: dict[float, list[SlotReport]] = {}

    def one(lr: float) -> None:
        setup = slot_setup(folder / f"slot{lr}", code=code, metrics=MetricSource(csv="metrics.csv"))
        found[lr] = play(setup, probe_config(parameters={"lr": lr, "batch_size": 64}))

    threads = [threading.Thread(target=one, args=(lr,)) for lr in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert {lr: values(reports)[-1] for lr, reports in found.items()} == {1.0: (5, 0.1), 2.0: (5, 0.2)}


def test_the_run_folder_is_empty_for_every_run_and_goes_with_it(folder: Path) -> None:
    text = """
import os, sys
print(os.listdir(sys.argv[1]), sys.argv[1])
open(os.path.join(sys.argv[1], "log.jsonl"), "w").write('{"step": 10, "val_loss": 0.5}\\n')
"""
    first = run(folder, text, MetricSource(jsonl="log.jsonl"), "{run_dir}")
    second = run(folder, text, MetricSource(jsonl="log.jsonl"), "{run_dir}")

    for reports in (first, second):
        listed, path = reports[-1].log_tail.split()
        assert listed == "[]"
        assert not Path(path).exists()


@pytest.mark.parametrize(
    ("text", "ending", "said"),
    [
        ("", Outcome.NO_METRIC, "log.jsonl is looked for in the run's own folder, which {run_dir}"),
        ('{"step": 1, "loss": 1.0}', Outcome.NO_METRIC, "it reported: loss"),
        ('{"step": 1, "val_loss": "low"}', Outcome.CRASHED, "metric 'val_loss' is text: 'low'"),
        ('{"step": "x", "val_loss": 1.0}', Outcome.CRASHED, "'x'"),
        ('{"val_loss": 1.0}', Outcome.CRASHED, "log.jsonl does not say how far the run is"),
        ('{"epoch": 1, "val_loss": 1.0}', Outcome.CRASHED, "no samples but epoch"),
        ('{"step": 1, "val_loss": Infinity}', Outcome.DIVERGED, "val_loss is +inf"),
    ],
)
def test_each_mistake_in_a_file_has_its_outcome(folder: Path, text: str, ending: Outcome, said: str) -> None:
    script = f"import sys; open(sys.argv[1] + '/log.jsonl', 'w').write({text + chr(10)!r})"

    reports = run(folder, script, MetricSource(jsonl="log.jsonl"), "{run_dir}")

    assert outcome(reports) == ending
    assert said in reason(reports)


def test_events_are_read_in_a_slot(folder: Path) -> None:
    text = """
import sys
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(sys.argv[1]) as writer:
    for step in range(1, 11):
        writer.add_scalar("val/loss", 1 / step, step)
"""
    reports = run(folder, text, MetricSource(tensorboard="."), "{run_dir}", metric="val/loss")

    assert outcome(reports) == Outcome.OK
    assert [index for index, _ in values(reports)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (MetricSource(csv="a.csv"), CsvFile),
        (MetricSource(jsonl="a"), JsonLinesFile),
        (MetricSource(tensorboard="."), EventFiles),
    ],
)
def test_the_kind_of_file_follows_from_the_job(source: MetricSource, kind: type, tmp_path: Path) -> None:
    make: Callable[..., Any] = metric_file

    assert isinstance(make(source, tmp_path, "val_loss"), kind)
    assert make(None, tmp_path, "val_loss") is None
    assert make(MetricSource(stdout="x"), tmp_path, "val_loss") is None


def test_of_a_line_that_is_too_long_nothing_is_taken_for_a_line() -> None:
    lines = Lines()

    found = [lines.feed(b"first\n" + b"x" * MAX_LINE_BYTES), *(lines.feed(b"x" * 1000) for _ in range(3))]
    found += [lines.feed(b"end of it\nlast\nun"), lines.feed(b"finished\n")]

    assert [line for each in found for line in each] == [b"first", b"last", b"unfinished"]


def test_a_line_of_the_report_file_that_is_no_json_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "report.jsonl").write_text("step 1 loss 0.5\n")

    (report,) = ReportFile(tmp_path / "report.jsonl").read()

    assert report == {"problem": "wrote a line to X5TUNE_REPORT that is no JSON object: 'step 1 loss 0.5'"}
