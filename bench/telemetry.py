"""What the telemetry of a slot costs, beside a busy probe: CPU seconds of the sampler's thread a second, and a look.

`python -m bench.telemetry` prints the share of one core that sampling takes, by 1 Hz samples and by looks at reports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from tuner.telemetry_sampler import TelemetrySampler

SECONDS = 15.0
LOOKS = 200
BUSY = "while True: pass"


def main() -> None:
    sampler = TelemetrySampler(0.0, 1.0)
    with subprocess.Popen([sys.executable, "-c", BUSY]) as probe:
        try:
            sampler.begin(os.getpid())
            own = psutil.Process()
            before, began = sum(own.cpu_times()[:2]), time.monotonic()
            probe_before = sum(psutil.Process(probe.pid).cpu_times()[:2])
            time.sleep(SECONDS)
            taken = sum(own.cpu_times()[:2]) - before
            worked = sum(psutil.Process(probe.pid).cpu_times()[:2]) - probe_before
            elapsed = time.monotonic() - began
            began = time.perf_counter()
            for _ in range(LOOKS):
                sampler.look()
            look_s = (time.perf_counter() - began) / LOOKS
        finally:
            probe.kill()
    sampler.close()
    print(f"sampling at 1 Hz        {taken / elapsed:8.3%} of a core, beside a probe that took {worked / elapsed:.1%}")
    print(f"a look at a report      {1e3 * look_s:8.3f} ms")
    print(f"of a probe of 1 s with 20 reports {taken / elapsed + 20 * look_s:8.3%}")


if __name__ == "__main__":
    main()
