"""Settings of Open MPI, which the wheel also installs into the `etc` of a virtual environment."""
