import pytest
from pydantic import ValidationError

from dynapipe_hpc.store.config import StoreConfig


@pytest.mark.parametrize("key", ["look_ahead", "plan_bytes", "timeout_s"])
def test_every_setting_is_positive(key: str) -> None:
    with pytest.raises(ValidationError, match=f"{key}\n.*greater than"):
        StoreConfig(**{key: 0})
