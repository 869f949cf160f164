"""The API process imports these modules, and must stay small."""

from __future__ import annotations

import subprocess
import sys

MODULES = "tuner.spec, tuner.spec_text, tuner.estimate, tuner.confirmation, tuner.export, tuner.seeds, tuner.jobspec"
HEAVY = ("torch", "ray", "optuna", "scipy", "numpy", "sklearn", "pandas")


def test_nothing_heavy_is_imported() -> None:
    code = f"import sys, {MODULES}; print([name for name in {HEAVY} if name in sys.modules])"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"
