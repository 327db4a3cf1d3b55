"""Pipeline-parallel training on samples of very different lengths, as an MPI batch job.

The flow, which is also the reading order of the packages:

    config -> data -> batch -> plan -> store -> execute -> report

The names below are for planning from Python. They are loaded when first used, and need numpy and
pydantic only: no torch, no MPI, and HDF5 just to read a cost table that was measured.

    >>> from dynapipe_hpc import Cluster, GptShape, format_plans, plan_iteration

`plan_iteration` is the short way from lengths to plans, with costs that are estimated from the peak
rates of an `AnalyticConfig`, measured (`read_cost_table`), or functions of one's own
(`FunctionCost`); a `DynamicConfig` says how samples may form micro-batches. `Planner` is the long
way: from `Sample`s, with any cost model (such as `analytic_cost`) and any rules. `format_plans`
shows plans, `check_plans` proves that they end, `simulate` runs a schedule of `MicroBatch`es in
simulated time, and `RunFolder` reads what a run has left. docs/library.md says what stays the same
from version to version.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynapipe_hpc.architecture.decoder import GptShape, LlamaShape
    from dynapipe_hpc.architecture.model_shape import ModelShape
    from dynapipe_hpc.architecture.placement import Placement
    from dynapipe_hpc.architecture.t5 import T5Shape
    from dynapipe_hpc.data.errors import InputError
    from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PackedRow, PaddedRows
    from dynapipe_hpc.data.sample import Sample
    from dynapipe_hpc.plan.check import check_plans
    from dynapipe_hpc.plan.cluster import Cluster
    from dynapipe_hpc.plan.rank_plan import grid as format_plans
    from dynapipe_hpc.planner.batch.config import DynamicConfig
    from dynapipe_hpc.planner.cost.analytic import analytic_cost
    from dynapipe_hpc.planner.cost.config import AnalyticConfig
    from dynapipe_hpc.planner.cost.from_config import read_cost_table
    from dynapipe_hpc.planner.cost.function_cost import FunctionCost
    from dynapipe_hpc.planner.make_plans import Planner
    from dynapipe_hpc.planner.plan_iteration import plan_iteration
    from dynapipe_hpc.planner.schedule.simulate import simulate
    from dynapipe_hpc.report.run_folder import RunFolder

__version__ = "0.1.0"

__all__ = [
    "AnalyticConfig",
    "Cluster",
    "DenseRows",
    "DynamicConfig",
    "FunctionCost",
    "GptShape",
    "InputError",
    "LlamaShape",
    "MicroBatch",
    "ModelShape",
    "PackedRow",
    "PaddedRows",
    "Placement",
    "Planner",
    "RunFolder",
    "Sample",
    "T5Shape",
    "analytic_cost",
    "check_plans",
    "format_plans",
    "plan_iteration",
    "read_cost_table",
    "simulate",
]

_HOME = {
    "AnalyticConfig": "planner.cost.config",
    "analytic_cost": "planner.cost.analytic",
    "Cluster": "plan.cluster",
    "DenseRows": "data.microbatch",
    "DynamicConfig": "planner.batch.config",
    "FunctionCost": "planner.cost.function_cost",
    "GptShape": "architecture.decoder",
    "InputError": "data.errors",
    "LlamaShape": "architecture.decoder",
    "MicroBatch": "data.microbatch",
    "ModelShape": "architecture.families",
    "PackedRow": "data.microbatch",
    "PaddedRows": "data.microbatch",
    "Placement": "architecture.placement",
    "Planner": "planner.make_plans",
    "RunFolder": "report.run_folder",
    "Sample": "data.sample",
    "T5Shape": "architecture.t5",
    "check_plans": "plan.check",
    "format_plans": "plan.rank_plan",
    "plan_iteration": "planner.plan_iteration",
    "read_cost_table": "planner.cost.from_config",
    "simulate": "planner.schedule.simulate",
}
_NAME_AT_HOME = {"format_plans": "grid"}

if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> object:
        """Loads a name of `__all__` when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = import_module(f"{__name__}.{_HOME[name]}")
        return getattr(home, _NAME_AT_HOME.get(name, name))


def __dir__() -> list[str]:
    """Names of the module, those not yet loaded included."""
    return sorted({*globals(), *__all__})
