"""Whatever is handed in: either a job that survives JSON, or a SpecError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.jobspec import Choices, Fixed, ResolvedJob
from tuner.spec import KEYS, SpecError, resolve
from tuner.spec_numbers import read_number
from tuner.spec_problems import BadValue
from tuner.spec_space import contains
from tuner.spec_text import load_text
from workloads.catalog import MANIFESTS

NAMES = [
    *KEYS, *MANIFESTS["digits-cnn"].parameters, "low", "high", "log", "int", "or_zero", "choices", "when", "axis",
    "max", "reports", "metric", "direction", "trials", "full_runs", "seconds", "cost", "amount", "per_device_hour",
    "top", "seeds", "cpus", "gpus", "processes", "steps", "start", "relative", "python", "command", "folder", "stdout",
    "jsonl", "csv", "A",
]  # fmt: skip
WORDS = ["auto", "adamw", "sgd", "lamb", "samples", "steps", "tokens", "tpe", "grid", "cmaes", "median", "1e-5", "nan"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 300),
    st.floats(),
    st.floats(0, 1),
    st.text(max_size=8),
    st.sampled_from([*WORDS, *MANIFESTS]),
    st.binary(max_size=3),
    st.integers(0, 9).map(lambda n: 10**400 + n),
)
KEY = st.one_of(st.sampled_from(NAMES), st.sampled_from(NAMES), st.text(max_size=5), st.integers(), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEY, inner, max_size=5)),
    max_leaves=25,
)
RANGES = st.fixed_dictionaries(
    {"low": st.floats(-1, 1), "high": st.floats(0, 9)}, optional={"log": st.booleans(), "or_zero": st.booleans()}
)
CHOICES = st.fixed_dictionaries({"choices": st.lists(st.floats(0.1, 0.9) | st.integers(1, 9), max_size=4)})
PARAMETERS = st.dictionaries(
    st.sampled_from(list(MANIFESTS["digits-cnn"].parameters)), st.one_of(RANGES, CHOICES, st.floats(0, 1), SCALARS)
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "search": PARAMETERS,
        "baseline": st.dictionaries(st.sampled_from(list(MANIFESTS["digits-cnn"].parameters)), st.floats(0.01, 0.9)),
        "budget": st.fixed_dictionaries({}, optional={"trials": st.integers(1, 99), "seconds": st.floats(1e-9, 1e300)}),
        "fidelity": st.fixed_dictionaries({"axis": st.just("seconds"), "max": st.floats(1e-300, 1e300)}),
        "seed": st.integers(0, 9),
    },
)
FOLDER = str(Path(__file__).parent)  # any folder with a Python file in it
ARGUMENTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["{lr}", "{batch_size}", "{x}", "{micro_batch}", "{{", "{seed}"]),
    st.integers(),
)
CODE = st.one_of(
    st.fixed_dictionaries(
        {"python": st.sampled_from(["test_properties.py:check", "support:x"]), "folder": st.just(FOLDER)}
    ),
    st.fixed_dictionaries({"command": st.lists(ARGUMENTS, min_size=1, max_size=5), "folder": st.just(FOLDER)}),
    st.fixed_dictionaries(
        {}, optional={"python": SCALARS, "command": VALUES, "folder": st.one_of(st.just(FOLDER), SCALARS)}
    ),
)
OWN_VALUES = st.one_of(RANGES, CHOICES, st.floats(0, 1), VALUES, st.fixed_dictionaries({"choices": st.lists(VALUES)}))
OWN_SPACE = st.dictionaries(st.one_of(st.sampled_from(["lr", "batch_size", "x", "seed"]), KEY), OWN_VALUES, max_size=3)
PATTERNS = st.one_of(st.text(max_size=9), st.sampled_from([r"(?P<step>.)(?P<val_loss>.)", r"(?P<samples>.)", "[[a]"]))
OWN_SPECS = st.fixed_dictionaries(
    {"workload": CODE},
    optional={
        "search": st.one_of(st.just({"lr": {"low": 0.1, "high": 1}}), OWN_SPACE),
        "baseline": OWN_SPACE,
        "fidelity": st.one_of(st.just({"max": 100}), VALUES),
        "objective": st.dictionaries(st.sampled_from(["metric", "direction"]), VALUES),
        "metrics": st.one_of(st.fixed_dictionaries({"stdout": PATTERNS}), VALUES),
    },
)


def job_or_none(spec: object) -> ResolvedJob | None:
    try:
        return resolve(spec).job
    except SpecError as error:
        assert error.problems
        json.dumps([problem.value for problem in error.problems], allow_nan=False).encode()
        return None


def check(job: ResolvedJob) -> None:
    written = json.loads(json.dumps(job.to_json(), allow_nan=False))
    assert ResolvedJob.from_json(written) == job
    assert resolve(written).job == job
    assert list(job.space) == list(job.baseline)
    for name, parameter in job.space.items():
        if isinstance(parameter, Choices):
            assert contains(parameter, job.baseline[name])


@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_any_value_is_resolved_or_refused_by_a_spec_error(spec: Any) -> None:
    if (job := job_or_none(spec)) is not None:
        check(job)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_value_under_a_real_key_is_resolved_or_refused_by_a_spec_error(spec: Any) -> None:
    if (job := job_or_none(spec)) is not None:
        check(job)


@settings(max_examples=400, deadline=None)
@given(SPECS)
def test_plausible_specifications_round_trip(spec: Any) -> None:
    if (job := job_or_none(spec)) is not None:
        check(job)


@settings(max_examples=600, deadline=None)
@given(OWN_SPECS)
def test_own_code_is_resolved_or_refused_by_a_spec_error(spec: Any) -> None:
    if (job := job_or_none(spec)) is not None:
        check(job)


@settings(max_examples=300, deadline=None)
@given(OWN_SPACE, OWN_SPACE)
def test_own_parameters_round_trip(search: Any, baseline: Any) -> None:
    workload = {"python": "test_properties.py:check", "folder": FOLDER}
    spec = {"workload": workload, "search": search, "baseline": baseline, "fidelity": {"axis": "seconds", "max": 9}}
    if (job := job_or_none(spec)) is not None:
        check(job)


@settings(deadline=None)
@given(PARAMETERS)
def test_a_baseline_that_nobody_gave_is_inside_the_space(search: Any) -> None:
    if (job := job_or_none({"search": search})) is not None:
        for name, parameter in job.space.items():
            assert contains(parameter, job.baseline[name])
            assert not isinstance(parameter, Fixed) or parameter.value == job.baseline[name]


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_reads_back_exactly_from_its_text(number: float) -> None:
    assert read_number(repr(number)) == number


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_mapping_or_a_spec_error(text: str) -> None:
    try:
        assert isinstance(load_text(text, "x"), dict)
    except SpecError as error:
        assert str(error)


@settings(deadline=None)
@given(VALUES)
def test_reading_a_number_raises_nothing_but_bad_value(value: Any) -> None:
    try:
        assert isinstance(read_number(value), float)
    except BadValue as bad:
        assert bad.message
