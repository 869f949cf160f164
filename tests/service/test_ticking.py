"""Work that is done again and again."""

from __future__ import annotations

import threading

from service.ticking import Ticking


def test_the_first_time_may_come_long_before_the_second() -> None:
    done = threading.Event()
    ticking = Ticking("work", done.set, interval_s=3600.0, first_s=0.01)
    ticking.start()
    try:
        assert done.wait(20)
    finally:
        ticking.stop()


def test_a_failure_does_not_end_it() -> None:
    times: list[int] = []
    again = threading.Event()

    def fail() -> None:
        times.append(1)
        if len(times) > 2:
            again.set()
        raise ValueError("this once")

    ticking = Ticking("work", fail, interval_s=0.01)
    ticking.start()
    try:
        assert again.wait(20)
    finally:
        ticking.stop()
