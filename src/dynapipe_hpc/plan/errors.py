"""What can be wrong with a plan."""

from dynapipe_hpc.data.errors import InputError, RunError


class PlanError(ValueError):
    """Plans that would hang, run out of memory or compute something else if executed."""


class PlanFormatError(RunError):
    """Bytes that are no plan, or a plan that has no bytes."""


class PlanTextError(InputError):
    """Text that is no grid of plans; the message names line and token."""
