"""Several datasets read as one."""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.token_block import TokenArray
from dynapipe_hpc.data.trained_tokens import Spans


class JoinedDatasets:
    """Datasets of the same tokenizer, read as one: ids of samples and tasks go through all of them.

    Attributes are those of a `DatasetFile`. `end_ids`: Tokens that end what is trained in any
    dataset. `start_id`: The token that is read before every sample; None if samples differ in it.
    `has_pairs`: Whether the samples of any dataset are preference pairs.
    """

    def __init__(self, files: Mapping[str, DatasetFile]) -> None:
        """Joins datasets by name, at least one."""
        self.files = tuple(files.values())
        for other in self.files[1:]:
            self._check_tokenizer(other)
        self.vocab_size, self.eos_id = self.files[0].vocab_size, self.files[0].eos_id
        self.end_ids = tuple(sorted({token_id for file in self.files for token_id in file.end_ids}))
        self.has_pairs = any(file.has_pairs for file in self.files)
        start_ids = {file.start_id for file in self.files}
        self.start_id = start_ids.pop() if len(start_ids) == 1 else None
        self.starts = [0, *accumulate(file.n_samples for file in self.files)]
        self.input_lengths = np.concatenate([file.input_lengths for file in self.files])
        self.target_lengths = np.concatenate([file.target_lengths for file in self.files])
        self.rejected_lengths = np.concatenate([file.rejected_lengths for file in self.files])
        n_tasks = [0, *accumulate(len(file.task_names) for file in self.files)]
        self.task_ids: npt.NDArray[np.int32] = np.concatenate(
            [file.task_ids + n for file, n in zip(self.files, n_tasks, strict=False)]
        )
        self.task_names = tuple(
            f"{name}/{task}" for name, file in files.items() for task in file.task_names
        )
        self.spans = Spans.join([file.spans for file in self.files])
        self.predicted_spans = Spans.join([file.predicted_spans for file in self.files])

    def close(self) -> None:
        """Closes the files; all but their tokens stays usable."""
        for file in self.files:
            file.close()

    def first_token(self, sample_id: int) -> int:
        """The token that is read before those of a sample: of its dataset, or its own."""
        file, local_id = self._find(sample_id)
        return file.first_token(local_id) if file.start_id is None else file.start_id

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[TokenArray, TokenArray]:
        """Reads tokens as `DatasetFile.read`."""
        file, local_id = self._find(sample_id)
        return file.read(local_id, input_tokens, target_tokens)

    def read_rejected(self, sample_id: int, n_tokens: int) -> TokenArray:
        """Reads tokens as `DatasetFile.read_rejected`."""
        file, local_id = self._find(sample_id)
        return file.read_rejected(local_id, n_tokens)

    def _find(self, sample_id: int) -> tuple[DatasetFile, int]:
        index = bisect_right(self.starts, sample_id) - 1
        return self.files[index], sample_id - self.starts[index]

    def _check_tokenizer(self, other: DatasetFile) -> None:
        """Refuses a dataset whose tokens mean something else than those of the first."""
        ours, theirs = self.files[0].header, other.header
        for what in ("tokenizer_sha256", "vocab_size", "eos_id"):
            if getattr(ours, what) != getattr(theirs, what):
                self.close()
                raise InputError(
                    f"data.mixture: {other.path} has {what} = {getattr(theirs, what)} (tokenizer "
                    f"{theirs.tokenizer_name}), but {self.files[0].path} has {getattr(ours, what)} "
                    f"(tokenizer {ours.tokenizer_name}); preprocess both with the same tokenizer"
                )


Dataset = DatasetFile | JoinedDatasets
"""A dataset, or several read as one."""
