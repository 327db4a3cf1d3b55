"""Errors of plans."""

from dynapipe_hpc.data.errors import RunError


class PlanError(ValueError):
    """Plans would hang, run out of memory or compute something else if executed."""


class PlanFormatError(RunError):
    """Bytes cannot be decoded into a plan, or a plan cannot be encoded as bytes."""
