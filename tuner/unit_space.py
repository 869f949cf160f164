"""A job's search space as points of the unit cube, and back: what `tuner.freeze_thaw` draws its configurations from.

A *place* says where in [0, 1] a parameter's value lies: linearly, or on a log scale; whole numbers and choices lie in
the middle of equal parts (numeric choices in the order of their values); 0 of an `or_zero` range lies in the lowest
tenth. A *point* is made of the places, except that three or more choices without an order have a coordinate each.
What does not exist in a configuration lies in the middle, the same for all that lack it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.conditions import active, condition_of, parents_first
from tuner.jobspec import Choices, Condition, Fixed, Parameter, Range
from tuner.spec_space import space_size
from tuner.spec_values import is_among
from tuner.study_space import ZERO_SHARE, StudySpace, same_choice

Vector = npt.NDArray[np.float64]

ENUMERATED = 4096
"""Spaces up to this size are searched to the last configuration."""
NOWHERE = 0.5
"""Coordinates of what does not exist."""
BEYOND = 0.5
"""How far outside the cube a baseline outside its range may lie."""
STEPS = (0.01, 0.2)
"""Standard deviations of a step to a neighbour, drawn from this log range."""
MOVED = 0.5
"""The share of the parameters that a neighbour changes."""


def rounded(points: Vector) -> Vector:
    """Points by which a configuration is known again: its way to values and back costs the last digits."""
    return np.asarray(np.round(points, 9) + 0.0)


def fingerprint(point: Vector) -> bytes:
    """What two points of the same configuration have in common."""
    return rounded(point).tobytes()


class Listed:
    """A finite list of points, each proposed once; the key of a point is its index."""

    def __init__(self, points: Vector) -> None:
        self.points = points
        self.dimensions = points.shape[1]
        self._is_free = np.ones(len(points), dtype=bool)

    def random(self, rng: np.random.Generator, count: int) -> Vector:
        chosen = rng.permutation(np.flatnonzero(self._is_free))[:count]
        return np.asarray(self.points[chosen])

    def near(self, _rng: np.random.Generator, point: Vector, count: int) -> Vector:
        free = np.flatnonzero(self._is_free)
        order = np.argsort(((self.points[free] - point) ** 2).sum(1), kind="stable")
        return np.asarray(self.points[free[order[:count]]])

    def take(self, point: Vector) -> int:
        free = np.flatnonzero(self._is_free)
        index = int(free[np.argmin(((self.points[free] - point) ** 2).sum(1))])
        self._is_free[index] = False
        return index

    def place(self, key: int) -> Vector:
        self._is_free[key] = False
        return np.asarray(self.points[key])


class UnitSpace:
    """The space of a job. A key is the configuration itself: every parameter that exists in it, fixed ones included."""

    def __init__(self, space: Mapping[str, Parameter]) -> None:
        self._space = space
        self._axes = [_Axis(name, p) for name in parents_first(space) if not isinstance(p := space[name], Fixed)]
        self.dimensions = sum(axis.width for axis in self._axes)
        self.size = space_size(space)
        self._listed = self._enumerated()
        self._taken: set[bytes] = set()

    def random(self, rng: np.random.Generator, count: int) -> Vector:
        """Up to `count` points that have not been taken; none when the space is used up."""
        if self._listed is not None:
            return self._listed.random(rng, count)
        return self._new(self._points(rng.random((count, len(self._axes)))))

    def near(self, rng: np.random.Generator, point: Vector, count: int) -> Vector:
        """The same near a point, itself first: each moves about half of the parameters, by steps of many sizes."""
        if self._listed is not None:
            return self._listed.near(rng, point, count)
        places = np.tile(self._places(point[None, :]), (count, 1))
        sizes = np.exp(rng.uniform(math.log(STEPS[0]), math.log(STEPS[1]), (count, 1)))
        moved = places + rng.normal(0, sizes, places.shape)
        for column, axis in enumerate(self._axes):
            if axis.is_coarse:
                # A step that stays in its part of the scale is none, so that such a parameter is drawn anew.
                moved[:, column] = rng.random(count)
        moved = np.where(moved < 0, -moved, np.where(moved > 1, 2 - moved, moved))
        changes = rng.random(places.shape) < MOVED
        changes[0] = False
        return self._new(self._points(np.where(changes, moved, places)))

    def take(self, point: Vector) -> dict[str, Any]:
        """The configuration at a point, which is not proposed again."""
        if self._listed is not None:
            point = self._listed.points[self._listed.take(point)]
        else:
            self._taken.add(fingerprint(point))
        return self.parameters(point)

    def place(self, key: Mapping[str, Any]) -> Vector:
        """The point of a configuration that someone else chose, such as the baseline; it is not proposed either.

        A number outside its range lies outside the cube, at most by half its width.
        """
        point = self.point(key)
        is_inside = bool(((point >= 0) & (point <= 1)).all())
        if is_inside and self._listed is not None and self._listed.points.size:
            nearest = np.argmin(((self._listed.points - point) ** 2).sum(1))
            if np.allclose(self._listed.points[nearest], point):
                self._listed.place(int(nearest))
        elif is_inside and self._listed is None:
            self._taken.add(fingerprint(point))
        return point

    def point(self, parameters: Mapping[str, Any]) -> Vector:
        """The point of a configuration; what it lacks, or what a choice does not offer, counts as not existing."""
        known = active(self._space, parameters)
        places = [NOWHERE if axis.name not in known else axis.place(known[axis.name]) for axis in self._axes]
        exists = [axis.name in known and axis.offers(known[axis.name]) for axis in self._axes]
        return np.asarray(self._columns(np.array([places]), np.array([exists]))[0])

    def parameters(self, point: Vector) -> dict[str, Any]:
        """The configuration at a point: what exists in it, fixed values included, in the order of the space."""
        places = self._places(point[None, :])[0]
        values = {axis.name: axis.value(float(place)) for axis, place in zip(self._axes, places, strict=True)}
        values |= {name: p.value for name, p in self._space.items() if isinstance(p, Fixed)}
        kept = active(self._space, values)
        return {name: kept[name] for name in self._space if name in kept}

    def _points(self, places: Vector) -> Vector:
        """Places (n, parameters), each moved to the middle of its value's part, as points (n, dimensions)."""
        snapped = np.column_stack([axis.snapped(places[:, n]) for n, axis in enumerate(self._axes)])
        return self._columns(snapped, self._exists(snapped))

    def _columns(self, places: Vector, exists: npt.NDArray[np.bool_]) -> Vector:
        columns = [axis.columns(places[:, n], exists[:, n]) for n, axis in enumerate(self._axes)]
        return np.concatenate([np.empty((len(places), 0)), *columns], axis=1)

    def _places(self, points: Vector) -> Vector:
        found, start = [np.empty((len(points), 0))], 0
        for axis in self._axes:
            found.append(axis.from_columns(points[:, start : start + axis.width]))
            start += axis.width
        return np.asarray(np.column_stack(found))

    def _exists(self, places: Vector) -> npt.NDArray[np.bool_]:
        """Which parameters (n, parameters) exist in each configuration."""
        found: dict[str, npt.NDArray[np.bool_]] = {}
        columns = {axis.name: places[:, n] for n, axis in enumerate(self._axes)}
        for axis in self._axes:
            found[axis.name] = self._are_met(condition_of(self._space[axis.name]), columns, found, len(places))
        return np.column_stack(list(found.values()))

    def _are_met(
        self,
        when: Condition | None,
        columns: Mapping[str, Vector],
        found: Mapping[str, npt.NDArray[np.bool_]],
        count: int,
    ) -> npt.NDArray[np.bool_]:
        if when is None:
            return np.ones(count, dtype=bool)
        parent = self._space[when.parent]
        if isinstance(parent, Fixed):
            return np.full(count, is_among(parent.value, when.values))
        above = next(axis for axis in self._axes if axis.name == when.parent)
        met = np.isin(columns[when.parent], [above.place(value) for value in when.values])
        return np.asarray(met & found[when.parent])

    def _new(self, points: Vector) -> Vector:
        """Without what has been taken and what is there twice."""
        seen: set[bytes] = set(self._taken)
        kept = []
        for row, point in enumerate(rounded(points)):
            if (told := point.tobytes()) not in seen:
                seen.add(told)
                kept.append(row)
        return points[kept]

    def _enumerated(self) -> Listed | None:
        if self.size is None or self.size > ENUMERATED:
            return None
        study = StudySpace(self._space)
        points = [self.point(study.from_study(stored)) for stored in study.configurations()]
        return Listed(np.array(points).reshape(len(points), self.dimensions))


class _Axis:
    """One searched parameter: its values and their places."""

    def __init__(self, name: str, parameter: Range | Choices) -> None:
        self.name = name
        self._parameter = parameter
        self._values: tuple[Any, ...] = ()
        self.width = 1
        if isinstance(parameter, Choices):
            self._values = tuple(sorted(parameter.values)) if _are_numbers(parameter) else parameter.values
            if not _are_numbers(parameter) and len(self._values) > 2:
                self.width = len(self._values)
        else:
            margin = 0.5 if parameter.integer else 0.0
            low, high = parameter.low - margin, parameter.high + margin
            self._edges = (math.log(low), math.log(high)) if parameter.log else (low, high)

    @property
    def is_coarse(self) -> bool:
        """Whether there are so few values that a small step leads nowhere."""
        if isinstance(self._parameter, Choices):
            return True
        return self._parameter.integer and self._parameter.high - self._parameter.low < 10

    def value(self, place: float) -> Any:
        """The parameter's value at a place."""
        parameter = self._parameter
        if isinstance(parameter, Choices):
            return self._values[min(int(place * len(self._values)), len(self._values) - 1)]
        if parameter.or_zero:
            if place < ZERO_SHARE:
                return 0.0
            place = (place - ZERO_SHARE) / (1 - ZERO_SHARE)
        low, high = self._edges
        scaled = low + (high - low) * place
        number = math.exp(scaled) if parameter.log else scaled
        number = min(max(number, parameter.low), parameter.high)
        return int(min(max(round(number), parameter.low), parameter.high)) if parameter.integer else float(number)

    def offers(self, value: Any) -> bool:
        """Whether a value has a place: any number in a range's direction, one of the choices else."""
        if isinstance(self._parameter, Choices):
            return is_among(value, self._values)
        return isinstance(value, int | float) and not isinstance(value, bool)

    def place(self, value: Any) -> float:
        """Where a value lies; NOWHERE for one that has no place."""
        parameter = self._parameter
        if not self.offers(value):
            return NOWHERE
        if isinstance(parameter, Choices):
            index = next(n for n, other in enumerate(self._values) if same_choice(other, value))
            return (index + 0.5) / len(self._values)
        if parameter.or_zero and value < parameter.low:
            return ZERO_SHARE / 2
        low, high = self._edges
        if parameter.log and value <= 0:
            return -BEYOND
        place = ((math.log(value) if parameter.log else value) - low) / (high - low)
        place = min(max(place, -BEYOND), 1 + BEYOND)
        return ZERO_SHARE + (1 - ZERO_SHARE) * place if parameter.or_zero else place

    def snapped(self, places: Vector) -> Vector:
        """Places (n,) moved to where the values that they stand for lie."""
        parameter = self._parameter
        if isinstance(parameter, Choices):
            parts = len(self._values)
            return (np.minimum(np.floor(places * parts), parts - 1) + 0.5) / parts
        if parameter.integer:
            low, high = self._edges
            scaled = low + (high - low) * places
            whole = np.rint(np.exp(scaled) if parameter.log else scaled).clip(parameter.low, parameter.high)
            return np.asarray(((np.log(whole) if parameter.log else whole) - low) / (high - low))
        return np.where(places < ZERO_SHARE, ZERO_SHARE / 2, places) if parameter.or_zero else places

    def columns(self, places: Vector, exists: npt.NDArray[np.bool_]) -> Vector:
        """The coordinates (n, width) of places (n,)."""
        if self.width == 1:
            return np.where(exists, places, NOWHERE)[:, None]
        index = np.minimum((places * self.width).astype(int), self.width - 1)
        return np.where(exists[:, None], np.eye(self.width)[index], NOWHERE)

    def from_columns(self, columns: Vector) -> Vector:
        """The places (n,) of coordinates (n, width)."""
        if self.width == 1:
            return columns[:, 0]
        return np.asarray((columns.argmax(axis=1) + 0.5) / self.width)


def _are_numbers(parameter: Choices) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in parameter.values)
