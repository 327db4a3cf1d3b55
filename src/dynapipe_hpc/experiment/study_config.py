"""The [study] table: what is compared by planning alone."""

from typing import Any, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable


class MethodConfig(ConfigTable):
    """A [[study.methods]] table: one of the methods that are compared.

    Attributes:
        name: Name of the method.
        planner: Keys of [planner] that the method has instead, table by table.
        cluster: Keys of [cluster] that the method has instead.
    """

    name: str = Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]*$")
    planner: dict[str, Any] = Field(default={})
    cluster: dict[str, Any] = Field(default={})


class StudyConfig(ConfigTable):
    """The [study] table, which runs do not read.

    Attributes:
        methods: Methods to compare; without any, the one that the other tables configure.
        ranks_per_node: Number of ranks on a node: the most shards that a grid search divides a
            layer into.
    """

    methods: tuple[MethodConfig, ...] = ()
    ranks_per_node: int = Field(default=8, ge=1, le=2**20)

    @model_validator(mode="after")
    def _check_method_names_differ(self) -> Self:
        names = [method.name for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"methods: two have the name '{name}'; rename one")
        return self
