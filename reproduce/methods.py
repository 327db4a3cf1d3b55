"""The methods that figures compare."""

from dynapipe_hpc.experiment.study.predict import Choosers
from reproduce.authors.authors import AuthorsPlanner
from reproduce.studies import Method

PACKING = "MLM+DS: packing to the maximum"
SAME = "MLM+DS on the division of ours"
FITTED = "packing to the longest"
BALANCED = "packed, balanced (today's rule)"
PUBLISHED = "DynaPipe as published"
PADDED = "ours, padded"
ALL = "ours, all layouts, split backward"
IN_ORDER = {"rules": ["1f1b"]}
NO_SEARCH = {"effort": 0}
CHOOSERS: Choosers = {PUBLISHED: AuthorsPlanner.with_interval}


def packing(longest: int) -> Method:
    """The paper's baseline: rows, those of a decoder too, as long as samples may be."""
    batch = {"rule": "dense_packing", "row_tokens": longest, "target_tokens": longest}
    return {"name": PACKING, "planner": {"batch": batch, "schedule": IN_ORDER}}


def fitted() -> Method:
    """Packing into rows as long as the longest sample of the iteration."""
    batch = {"rule": "dense_packing"}
    return {"name": FITTED, "planner": {"batch": batch, "schedule": IN_ORDER}}


def balanced() -> Method:
    """Packed rows with attention inside samples, of about the same work."""
    batch = {"rule": "packed_balanced"}
    return {"name": BALANCED, "planner": {"batch": batch, "schedule": IN_ORDER}}


def published() -> Method:
    """The planner of the paper's artifact, which chooses plans in place of ours."""
    return {"name": PUBLISHED}


def padded() -> Method:
    """Our planner with the layouts and passes of the paper."""
    return {"name": PADDED}


def everything() -> Method:
    """Our planner with all that it has but slices of long samples, which have their own figure."""
    batch = {"rule": "dynamic", "layouts": ["padded", "packed"], "slices": "off"}
    return {"name": ALL, "planner": {"batch": batch, "schedule": {"split_backward": True}}}
