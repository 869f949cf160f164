"""What a training script says and hears while x5tune runs it, and nothing at all while it does not.

Standard library only, and no syntax newer than Python 3.9: this runs in the user's own environment. A report goes out
as one JSON line over the Unix socket that X5TUNE_CONTROL names, and the decision comes back as one line, so the script
stands still while its trial is being judged. Without the socket the line is appended to the file that X5TUNE_REPORT
names. Safe in threads (one report at a time) and across forks (a child opens its own connection).

Not protected: a `Stop` that a thread other than the main one meets ends that thread alone, as any SystemExit does.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

OUTSIDE = {
    "parameters": {},
    "derived": {},
    "seed": 0,
    "fidelity": None,
    "device": "cpu",
    "precision": "fp32",
    "trial": None,
    "job_id": None,
}
PROGRESS = ("samples", "tokens", "seconds", "epoch")
STATE = "script"  # within checkpoint_dir and resume_dir


class Stop(SystemExit):
    """Raised by `report` when this run is to end; `reason` says why.

    A SystemExit with status 0: uncaught it ends the script quietly, and `except Exception` does not swallow it.
    """

    def __init__(self, reason: str = "stopped") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = 0


def config() -> dict[str, Any]:
    """What this run is asked to do: parameters, derived, seed, fidelity, device, precision, trial, job_id, and more.

    Outside x5tune there are no parameters, `fidelity`, `trial` and `job_id` are None, and the seed is 0.
    """
    path = os.environ.get("X5TUNE_CONFIG")
    if not path:
        return {**OUTSIDE, "parameters": {}, "derived": {}}
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content


def report(*, step: int, metrics: Mapping[str, Any] | None = None, **named: Any) -> None:
    """Hand in metrics after `step` optimizer steps, and wait for the decision; raises `Stop` when the run is to end.

    `samples`, `tokens`, `seconds` or `epoch` among them say how far the run is; `samples` defaults to step x
    batch_size. `metrics` takes names that are no identifiers: `report(step=200, metrics={"val/acc@5": 0.31})`. NumPy,
    Decimal and zero-dimensional tensor scalars are numbers, NaN and infinities are allowed; anything else is a
    TypeError that names the metric. Of several processes only rank 0 (by RANK) reports and meets `Stop`; on the others
    this returns at once, and x5tune ends them with it. Outside x5tune only the values are checked.
    """
    message = _message(step, metrics, named)
    if _rank() > 0:
        return
    control, file = os.environ.get("X5TUNE_CONTROL"), os.environ.get("X5TUNE_REPORT")
    if control:
        pausable = {"can_pause": True} if can_pause() else {}
        _obey(_exchange(control, {"type": "report", **message, **pausable}))
    elif file:
        with open(file, "ab", buffering=0) as stream:  # noqa: PTH123 - one write, whole, at the end
            stream.write(_line(message))


def checkpoint(*, save: Callable[[str], object], load: Callable[[str], object]) -> bool:
    """Make this run one that can be paused and resumed; whether it goes on from an earlier one.

    Call it before the first report, once the model and the optimizer are there. `load(path)` is called at once when an
    earlier run of this trial was paused, and has to put everything back: the step too, so that the next report is the
    one that would have come next. `save(path)` is called from within `report` when this run is to pause, and has to
    write a file or a folder there. Of several processes all load, and rank 0 saves. Raises RuntimeError when what was
    saved is gone. Outside x5tune neither is called.
    """
    if not os.environ.get("X5TUNE_CONFIG"):
        return False
    given = config()
    folder, resumed = given.get("checkpoint_dir"), given.get("resume_dir")
    _state.save, _state.target = save, Path(folder, STATE) if folder else None
    if not resumed:
        return False
    state = Path(resumed, STATE)
    if not state.exists():
        raise RuntimeError(f"this run is to go on from {state}, where nothing is")
    load(str(state))
    return True


def can_pause() -> bool:
    """Whether a pause would keep this run's state; said with every report."""
    return _state.save is not None and _state.target is not None


def save_state() -> None:
    """Have the script write its state, under another name until it is whole. Raises what its `save` raises."""
    if _state.save is None or _state.target is None:
        return
    new = _state.target.with_name(f"{STATE}.new")
    new.parent.mkdir(parents=True, exist_ok=True)
    _remove(new)
    _state.save(str(new))
    if not new.exists():
        raise RuntimeError(f"the save function given to x5tune.checkpoint has written nothing to {new}")
    _remove(_state.target)
    os.replace(new, _state.target)  # noqa: PTH105


class _Connection:
    """The socket to the slot, belonging to the process that opened it.

    Unbuffered: a buffered reader has a lock, which a fork during another thread's report would leave locked for ever.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            self._socket.sendall(_line({"type": "hello", "pid": _outer_pid()}))
        except OSError:
            self._socket.close()
            raise

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line and wait for the one that answers it; raises OSError when nobody does."""
        self._socket.sendall(_line(message))
        line = b""
        while not line.endswith(b"\n"):
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the connection was closed")
            line += data
        reply: dict[str, Any] = json.loads(line)
        return reply

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one line that is not answered; one who is gone needs none."""
        with contextlib.suppress(OSError):
            self._socket.sendall(_line(message))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class _State:
    """What this process remembers between reports."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.connection: _Connection | None = None
        self.stopped: str | None = None
        self.save: Callable[[str], object] | None = None
        self.target: Path | None = None

    def disown(self) -> None:
        """In a forked child: leave the parent's connection, and its lock, to the parent."""
        if self.pid == os.getpid():
            return
        self.pid = os.getpid()
        self.lock = threading.Lock()
        if self.connection is not None:
            self.connection.close()  # our copy only
            self.connection = None


_state = _State()
os.register_at_fork(after_in_child=_state.disown)


def _message(step: int, metrics: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The report as it is sent. Raises TypeError and ValueError in the user's words."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a mapping of names to numbers, not {type(metrics).__name__} {metrics!r:.80}")
    numbers: dict[str, float] = {}
    for name, value in {**(metrics or {}), **named}.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a metric must be text, not {type(name).__name__} {name!r:.80}")
        numbers[name] = _number(name, value)
    message: dict[str, Any] = {"step": _step(step)}
    for name in PROGRESS:
        if name in numbers:
            if not math.isfinite(numbers[name]):
                raise ValueError(f"{name!r} says how far the run is and must be finite, not {numbers[name]}")
            message[name] = numbers.pop(name)
    message["metrics"] = numbers
    return message


def _step(step: Any) -> int:
    if isinstance(step, bool):
        raise TypeError(f"step must be a whole number, not {step!r}")
    try:
        return operator.index(step)
    except TypeError:
        number = _number("step", step)
        if not number.is_integer():
            raise ValueError(f"step must be a whole number, not {step!r:.80}") from None
        return int(number)


def _number(name: str, value: Any) -> float:
    if value is None or isinstance(value, (str, bytes, bool)):
        raise TypeError(f"metric {name!r} must be a number, not {type(value).__name__} {value!r:.80}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r} must be a number, not {type(value).__name__}: {error}") from error
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _exchange(control: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to `message`. A tuner that is gone wants nothing any more: that is a stop."""
    _state.disown()  # after a fork that Python has not seen
    with _state.lock:
        if _state.stopped is not None:
            return {"go": "stop", "reason": _state.stopped}
        try:
            if _state.connection is None:
                _state.connection = _Connection(control)
            return _state.connection.ask(message)
        except OSError as error:
            _drop()
            return {"go": "stop", "reason": f"the tuner is gone ({error})"}
        except BaseException:  # an interrupt between a report and its answer: the next report must not read this one's
            _drop()
            raise


def _drop() -> None:
    if _state.connection is not None:
        _state.connection.close()
        _state.connection = None


def _obey(reply: Mapping[str, Any]) -> None:
    go = reply.get("go")
    if go == "pause":
        save_state()
        if _state.connection is not None:  # the script may swallow the Stop and end in its own way
            _state.connection.tell({"type": "end", "outcome": "paused", "reason": reply.get("reason")})
    if go in ("stop", "pause"):
        _state.stopped = str(reply.get("reason") or ("paused" if go == "pause" else "stopped"))
        raise Stop(_state.stopped)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _rank() -> int:
    try:
        return int(os.environ.get("RANK") or 0)
    except ValueError:
        return 0


def _outer_pid() -> int:
    """Our pid as the machine's /proc shows it, which differs from `os.getpid()` inside a PID namespace."""
    try:
        return int(os.readlink("/proc/self"))  # noqa: PTH115
    except (OSError, ValueError):
        return os.getpid()


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
