"""Errors of the tuner."""


class TunerError(Exception):
    """Base of everything that the tuner raises on purpose."""


class StudyInterruptedError(TunerError):
    """The study cannot go on for a reason outside of it; it can be taken up again."""


class ClusterUnavailableError(TunerError):
    """Ray does not start, or the cluster by address does not let us in; the message says what to do."""
