"""The [report] table: what a run records about itself."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class ReportConfig(ConfigTable):
    """The [report] table: what goes into the run folder.

    Attributes:
        trace_iterations: Number of iterations whose plans and traces are written, from the
            first on; 0 writes none.
        log_every: Number of iterations from one printed line to the next. The first and the last
            iteration after a start or restart are always printed, as are skipped updates.
        tensorboard: Whether to write curves for TensorBoard into the run folder, if it is
            installed.
        wandb: Weights & Biases project that gets the curves; if None, nothing is sent. Curves wait
            in the run folder for `wandb sync`, or are sent at once if `WANDB_MODE` is online.
        mlflow: MLflow experiment that gets the curves, on the server that `MLFLOW_TRACKING_URI`
            names, or else in the run folder; if None, nothing is sent.
    """

    trace_iterations: int = Field(default=20, ge=0, le=10**7)
    log_every: int = Field(default=1, ge=1, le=10**7)
    tensorboard: bool = True
    wandb: str | None = Field(default=None, min_length=1, max_length=128)
    mlflow: str | None = Field(default=None, min_length=1, max_length=128)
