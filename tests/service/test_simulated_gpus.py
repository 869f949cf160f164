"""A job on two GPUs that a library makes up: device, telemetry, receipt and caps, through a service on a real Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.support import read_events
from tests.service.test_end_to_end import client, submit, until
from tests.service.test_supervisor import serving
from tests.tuner.fake_devices import GOOD, HAS_NO_COMPILER, A, B, compiled, devices

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(240),
    pytest.mark.skipif(HAS_NO_COMPILER, reason="needs a C compiler"),
]
SCRIPT = """
import sys, time, x5tune
lr = float(sys.argv[1])
for step in range(1, 6):
    time.sleep(0.3)
    x5tune.report(step=step, val_loss=(lr - 0.01) ** 2 + 1 / step)
"""
FIRST = {**GOOD, "energy": "@300", "capability": "90", "throttle": str(0x4)}
SECOND = {**FIRST, "uuid": B, "energy": "!3", "power": "100000"}  # without a counter


def spec(folder: Path, **changes: Any) -> dict[str, Any]:
    (folder / "train.py").write_text(SCRIPT)
    return {
        "workload": {"command": [sys.executable, "train.py", "{lr}"], "folder": str(folder)},
        "objective": {"metric": "val_loss", "direction": "minimize"},
        "search": {"lr": {"low": 1e-4, "high": 1.0, "log": True}},
        "baseline": {"lr": 0.3},
        "fidelity": {"axis": "steps", "max": 5, "reports": 5},
        "pruner": "none",
        "confirm": {"top": 0},
        "resources": {"gpus": 2},
        "budget": {"trials": 4},
        **changes,
    }


def heard(api: httpx.Client, job_id: str, text: str) -> bool:
    """Whether an event of the job says so, before it ends."""
    with api.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        return any(text in str(event["data"].get("text")) for event in read_events(answer.iter_lines()))


def test_a_job_on_two_gpus_waits_until_they_are_cool_is_measured_and_its_energy_capped(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "devices"
    file.write_text(devices({**FIRST, "throttle": str(0x40)}, SECOND))
    library = compiled(tmp_path)
    variables = {"LD_LIBRARY_PATH": str(library), "X5TUNE_FAKE_NVML": str(file)}
    with serving(home, runner=True, **variables) as service, client(service) as api:
        job_id = submit(api, spec(tmp_path))
        assert heard(api, job_id, "waits for the device: gpu0 is throttled (hardware_thermal)")
        file.write_text(devices(FIRST, SECOND))
        job = until(api, job_id, state="succeeded")
        trials = api.get(f"/v1/jobs/{job['id']}/trials").json()["items"]
        traces = api.get(f"/v1/jobs/{job['id']}/trials/0/telemetry").json()["items"]
        metrics = api.get("/metrics").text
        capped = until(api, submit(api, spec(tmp_path, budget={"energy_kwh": 1e-4})), state="succeeded")
        file.write_text(
            devices(*({k: v for k, v in each.items() if k not in ("energy", "power")} for each in (FIRST, SECOND)))
        )
        blind = until(api, submit(api, spec(tmp_path, budget={"energy_kwh": 1e-4})), state="failed")

    assert [trial["warnings"] for trial in trials] == [{"device_waited_for": 1}, {}, {}, {}]
    assert trials[0]["health"]["device_waited_for"].startswith("waited ")
    seen = [trial["telemetry"] for trial in trials]
    for each in seen:
        assert {device["uuid"] for device in each["devices"]} == {A, B}
        assert each["energy_j"] == pytest.approx((300 + 100) * each["seconds"], rel=0.05)
        assert each["is_simulated"] is True
    assert traces[0]["trace"]["values"]["gpu1.temperature_c"][0] == 61.0
    total_kwh = sum(each["energy_j"] for each in seen) / 3.6e6
    assert job["spend"]["energy_kwh"] == pytest.approx(total_kwh)
    assert (job["spend"]["is_simulated"], job["spend"]["energy_reason"]) == (True, "simulated")
    assert trials[0]["probes"][0]["device"] == "NVIDIA H100 (simulated)"
    assert 'x5tune_runs{energy_measured="true"} 4.0' in metrics
    assert capped["stop_reason"] == "energy"
    assert 1e-4 <= capped["spend"]["energy_kwh"] < 3e-4  # 360 J, and what the two take until they are stopped
    assert "budget.energy_kwh = 0.0001 cannot be kept" in blind["error"]
    assert "not_supported" in blind["error"]
