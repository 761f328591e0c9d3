"""Reproductions of the circuits of in-context learning: see README.md, and the notebooks that use this package."""

import os

# OpenMP threads that wait by spinning stall small models on a shared machine: 94 s instead of 5 s were measured for the
# forerunner run with two threads beside one busy process. It is read when torch is first imported, hence here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
