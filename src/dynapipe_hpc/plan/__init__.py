"""The interface of planning and execution. In: nothing. Out: plans, as values, text, bytes."""
