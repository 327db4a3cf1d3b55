"""The [report] table: what a run records about itself."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class ReportConfig(ConfigTable):
    """The [report] table: what goes into the run folder.

    Attributes:
        trace_iterations: Number of iterations whose plans and traces are written, from the
            first on; 0 writes none.
        log_every: Number of iterations per line that is printed. The first and the last iteration
            of a start are printed anyway, and those that ask for attention.
    """

    trace_iterations: int = Field(default=20, ge=0, le=10**7)
    log_every: int = Field(default=1, ge=1, le=10**7)
