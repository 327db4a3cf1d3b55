"""What a run records about itself."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class ReportConfig(ConfigTable):
    """What goes into the run folder. The [report] table.

    Attributes:
        trace_iterations: Plans and traces are written for this many iterations, from the
            first; 0 writes none.
    """

    trace_iterations: int = Field(default=20, ge=0, le=10**7)
