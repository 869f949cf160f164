"""The fp16 loss scale: measured on gradients, calibrated, recorded, judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.workloads.support import RecordingProbe, TinyWorkload, config_for, probe_for
from workloads.contract import Pause
from workloads.loss_scale import ScaleChoice, judge
from workloads.magnitudes import Magnitudes

NOTHING = Magnitudes()


def magnitudes(**counts: int) -> Magnitudes:
    """`magnitudes(e3=5, e_20=1)`: five gradients of 2^3, one of 2^-20."""
    made = Magnitudes()
    for name, count in counts.items():
        made.add([torch.full((count,), 2.0 ** int(name[1:].replace("_", "-")))])
    return made


def test_the_share_that_fp16_flushes_and_overflows_is_what_fp16_really_does() -> None:
    gradients = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) * 2.0**-20
    measured = Magnitudes()
    measured.add([gradients])
    for scale in (1.0, 64.0, 2048.0, 2.0**24):
        half = (gradients * scale).half()
        assert measured.flushed(scale) == pytest.approx(float((half == 0).float().mean()), abs=1e-3)
    large = Magnitudes()
    large.add([gradients * 2.0**30])
    assert large.overflowing(64.0) == pytest.approx(
        float((gradients * 2.0**36).half().isinf().float().mean()), abs=1e-3
    )


def test_zeros_do_not_count_and_what_is_not_finite_is_the_largest() -> None:
    measured = Magnitudes()
    measured.add([torch.tensor([0.0, 1.0, float("inf")]), None])
    assert float(measured.counts.sum()) == 2
    assert measured.overflowing(1.0) == 0.5


def test_the_choice_leaves_headroom_above_the_largest_gradient() -> None:
    choice = ScaleChoice.of(magnitudes(e_3=10, e_25=1), magnitudes(e_1=1))
    assert choice is not None
    assert (choice.floor, choice.scale) == (1.0, 2.0**12)  # 2^12 x 2^-1 is 2^11, four powers below 2^15


def test_small_gradients_need_a_scale_and_the_shares_are_told() -> None:
    choice = ScaleChoice.of(magnitudes(e_10=50, e_30=50), NOTHING)
    assert choice is not None
    assert choice.floor == 2.0**5
    assert choice.underflow == {"1": 0.5, "2048": 0.0, "chosen": 0.0, "activations": 0.0}


def test_gradients_of_too_many_magnitudes_fit_no_scale() -> None:
    choice = ScaleChoice.of(magnitudes(e2=50, e_45=50), NOTHING)
    assert choice is not None
    assert choice.is_empty
    assert "no loss scale holds these gradients" in (judge(choice, 512.0, 0, 100, 0.5) or "")
    assert ScaleChoice.of(NOTHING, magnitudes(e1=1)) is None


@pytest.mark.parametrize(
    ("scale", "skipped", "flushed", "said"),
    [
        (2048.0, 38, 0.0, "skipped 38 of 100 steps: lower the learning rate or use bf16"),
        (1.0, 0, 0.34, "a loss scale of 1 flushes 34.0% of the gradients to zero; raise it to 2.09715e+06"),
        (2048.0, 2, 0.0, None),
    ],
)
def test_skips_and_underflow_are_judged(scale: float, skipped: int, flushed: float, said: str | None) -> None:
    choice = ScaleChoice.of(magnitudes(e_10=66, e_30=34), NOTHING)
    assert (judge(choice, scale, skipped, 100, flushed) or "").startswith(said or "")
    assert (judge(choice, scale, skipped, 100, flushed) is None) == (said is None)


@dataclass
class TalkingProbe(RecordingProbe):
    """Also keeps what is said without being answered."""

    said: list[Mapping[str, Any]] = field(default_factory=list)

    def send(self, message: Mapping[str, Any]) -> None:
        self.said.append(message)

    @property
    def scaling(self) -> dict[str, Any]:
        values = [message["values"] for message in self.said if message["type"] == "health"]
        found: dict[str, Any] = values[-1]["loss_scaling"]
        return found


class ScaledWorkload(TinyWorkload):
    """Its loss, and so its gradients, times a factor; with `is_split` most weights have next to none."""

    def __init__(self, factor: float, *, is_split: bool = False) -> None:
        super().__init__()
        self.factor, self.is_split = factor, is_split

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model = super().model(config)
        model.register_parameter("spare", nn.Parameter(torch.zeros(500)))
        return model

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        loss = super().loss(model, batch) * self.factor
        spare = model.get_parameter("spare")
        return loss + spare.sum() * 2.0**-44 if self.is_split else loss


def run(workload: TinyWorkload, steps: int = 150, loss_scale: Any = "auto", **settings: Any) -> TalkingProbe:
    config = config_for(
        axis="steps", maximum=steps, reports=steps, precision="fp16", derived={"loss_scale": loss_scale}, **settings
    )
    probe = TalkingProbe(probe_for(config, 4).horizon)
    workload.run(config, probe)
    return probe


def test_auto_starts_at_2048_and_goes_to_what_is_measured_in_the_first_100_steps() -> None:
    small, large = run(ScaledWorkload(2.0**-12)), run(ScaledWorkload(2.0**6))
    for probe in (small, large):
        scales = probe.values("loss_scale")
        assert scales[:3] == [2048.0] * 3
        assert scales[-1] == scales[99] <= probe.scaling["chosen"] == probe.scaling["ceiling"]
        assert probe.scaling["underflow"]["chosen"] <= probe.scaling["underflow"]["1"]
        assert probe.scaling["verdict"] is None
        assert probe.scaling["trajectory"][0] == [1, 2048.0]
    assert small.scaling["chosen"] > 2048 > large.scaling["chosen"]
    assert small.scaling["underflow"]["1"] > small.scaling["underflow"]["chosen"]


def test_measuring_changes_nothing_but_the_scale() -> None:
    fixed = run(TinyWorkload(), loss_scale=2048, dropout=0.3)
    auto = run(TinyWorkload(), dropout=0.3)
    assert auto.values("train_loss") == pytest.approx(fixed.values("train_loss"), rel=0.02)
    assert auto.values("lr") == fixed.values("lr")


def test_a_number_is_kept_and_what_it_flushes_is_said() -> None:
    probe = run(ScaledWorkload(2.0**-14), loss_scale=1)
    assert set(probe.values("loss_scale")) == {1.0}
    assert "a loss scale of 1 flushes" in probe.scaling["verdict"]


def test_where_no_scale_fits_the_run_goes_on_in_bf16_and_says_so() -> None:
    workload = ScaledWorkload(2.0**10, is_split=True)
    probe = run(workload)
    notes = [message["text"] for message in probe.said if message.get("name") == "precision_changed"]
    assert len(notes) == 1
    assert notes[0].startswith("at step 5 no loss scale holds these gradients")
    assert notes[0].endswith("this run goes on in bf16")
    assert "loss_scale" not in probe.reports[-1][1]


def test_the_calibration_is_gone_on_with_after_a_pause(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"axis": "steps", "maximum": 120, "reports": 12, "precision": "fp16"}
    unbroken = config_for(**settings)
    probe = probe_for(unbroken, 4)
    ScaledWorkload(2.0**-12).run(unbroken, probe)
    first = probe_for(config_for(**settings, checkpoint_dir=str(tmp_path)), 4, pause_after=4)
    with pytest.raises(Pause):
        ScaledWorkload(2.0**-12).run(config_for(**settings, checkpoint_dir=str(tmp_path)), first)
    second = probe_for(config_for(**settings, resume_dir=str(tmp_path)), 4)
    ScaledWorkload(2.0**-12).run(config_for(**settings, resume_dir=str(tmp_path)), second)
    assert first.reports + second.reports == probe.reports


def test_an_overflow_is_told_acted_on_and_got_over() -> None:
    probe = run(TinyWorkload(), steps=300, loss_scale=2.0**24, lr=0.02)
    notes = [message["text"] for message in probe.said if message["type"] == "note"]
    assert notes[0].startswith("the gradients of step 1 overflow: it is skipped, the loss scale goes to")
    assert probe.values("val_loss")[-1] < probe.values("val_loss")[0] / 2
    assert "a loss scale of 1.67772e+07 overflows" in probe.scaling["verdict"]
