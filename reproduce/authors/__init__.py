"""The planner of the paper's authors."""
