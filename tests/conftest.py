"""What holds for all tests."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background with SIGINT ignored, and every process of ours would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
