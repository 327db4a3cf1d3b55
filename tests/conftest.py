"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine; pytest-timeout catches what hangs.
settings.register_profile(
    "any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any_machine")
