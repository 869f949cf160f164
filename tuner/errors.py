"""Errors of the tuner."""


class TunerError(Exception):
    """Base of everything that the tuner raises on purpose."""
