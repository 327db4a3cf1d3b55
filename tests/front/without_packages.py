"""Plugin of pytest: as if the packages in the variable WITHOUT_PACKAGES were not installed."""

import os
import sys

sys.modules.update(dict.fromkeys(os.environ.get("WITHOUT_PACKAGES", "").split()))  # type: ignore[arg-type]
