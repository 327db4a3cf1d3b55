"""The [planner.batch] table: how samples form micro-batches."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.data.microbatch import MAX_FILL_TOKENS, Layout
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.slice_rule import SliceSetting

RecomputeChoice = Literal["per_microbatch", "per_iteration"]
LayoutName = Literal["padded", "packed"]
MAX_MULTIPLE = 8192


class DynamicConfig(ConfigTable):
    """Dynamic micro-batches: for every iteration, the ones predicted to finish soonest.

    Attributes:
        rule: Name of this batch rule.
        layouts: Layouts of micro-batches to choose from: padded, one sample per row, and packed,
            samples laid end to end in one row (in an encoder-decoder model one of inputs and one
            of targets) with attention within each sample. Each micro-batch has the layout that
            makes the predicted iteration shortest.
        token_multiple: Every row is padded to a multiple of this number of tokens. It must be a
            multiple of 8; kernels for 8-bit numbers need 16. Packed rows are filled up, padded rows
            are lengthened; above 128, all rows must be packed. Higher multiples mean fewer shapes:
            packed rows of a decoder-only model have at most data.tokens_per_batch / token_multiple
            shapes.
        recompute_choice: Choice among the modes of planner.cost.recompute: per_microbatch gives
            each micro-batch its own; per_iteration, a baseline, gives all micro-batches the
            fastest mode, as in the paper.
        slices: Whether long samples are cut along their tokens into slices, which follow each other
            through the stages as micro-batches of packed rows: off, auto, or the number of tokens
            of a slice. With auto, a sample is cut where that makes the predicted iteration shorter:
            because, if it ran uncut, other samples would wait for it in the stages, or would be
            recomputed for lack of memory. Slices of a sample take equally long and have 1,024
            tokens or more on average. Samples that do not fit uncut are cut, too. Slices need
            packed rows, adaptive schedules and a decoder-only model (one without soft caps, if its
            family is transformers); with auto, samples run uncut where one of these is missing.
    """

    rule: Literal["dynamic"] = "dynamic"
    layouts: Annotated[tuple[LayoutName, ...], Field(min_length=1)] = ("padded",)
    token_multiple: int = Field(
        default=ROW_MULTIPLE, ge=ROW_MULTIPLE, le=MAX_MULTIPLE, multiple_of=ROW_MULTIPLE
    )
    recompute_choice: RecomputeChoice = "per_microbatch"
    slices: SliceSetting = "auto"

    @property
    def document_multiple(self) -> int:
        """Multiple to which a single sample's positions are padded."""
        return min(self.token_multiple, MAX_FILL_TOKENS)

    @property
    def layouts_to_choose(self) -> tuple[Layout, ...]:
        """Layouts of micro-batches, without duplicates."""
        return tuple(sorted({Layout.from_text(name) for name in self.layouts}))

    @model_validator(mode="after")
    def _check_slices_need_packed_rows(self) -> Self:
        if isinstance(self.slices, int) and "packed" not in self.layouts:
            raise ValueError(
                f"slices is {self.slices}, but slices of samples are micro-batches of packed "
                'rows; set layouts = ["packed"], or slices to "auto"'
            )
        return self

    @model_validator(mode="after")
    def _check_padded_token_multiple(self) -> Self:
        if self.token_multiple > MAX_FILL_TOKENS and "padded" in self.layouts:
            raise ValueError(
                f"token_multiple ({self.token_multiple}) is more than {MAX_FILL_TOKENS}, so that "
                "padding would take most of the rows of short samples; set layouts = "
                '["packed"] or lower it'
            )
        return self
