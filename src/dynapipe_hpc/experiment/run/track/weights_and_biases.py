"""Curves on Weights & Biases, or in a folder for its `wandb sync`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError


class WeightsAndBiases:
    """One run of a project."""

    name = "wandb"

    def __init__(self, output: Path, project: str, run_id: str, config: Mapping[str, Any]) -> None:
        """Begins or continues the run.

        Args:
            output: The run folder, in which `wandb/` keeps what is to be sent.
            project: Name of the project.
            run_id: The same for all starts of a run.
            config: The resolved configuration.

        Raises:
            InputError: The package refuses, as without a login.
        """
        import wandb

        try:
            self._run = wandb.init(
                project=project,
                name=output.resolve().name,
                dir=str(output),
                mode=os.environ.get("WANDB_MODE", "offline"),
                id=run_id,
                resume="allow",
                config=dict(config),
                settings=wandb.Settings(console="off", silent=True),
            )
        except Exception as error:
            raise InputError(
                f'report.wandb = "{project}": {error}; set WANDB_MODE to offline in the '
                "environment, or leave report.wandb out"
            ) from error

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Sends the rest."""
        self._run.finish()
