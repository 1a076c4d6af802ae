"""Where no TMPDIR is given (tests/runner.py gives one), all temporary folders of a run lie in one,
which goes with it: what killed trainers, launchers and data loaders leave is in there, too."""
import os
import shutil
import tempfile


def pytest_configure(config):
    if "TMPDIR" not in os.environ:
        config.scratch = tempfile.mkdtemp(prefix="cairn-interop-")
        os.environ["TMPDIR"] = config.scratch
        tempfile.tempdir = None  # read $TMPDIR again
    # The agents of this run are not in the user's list of agents.
    os.environ["XDG_RUNTIME_DIR"] = os.environ["TMPDIR"]


def pytest_unconfigure(config):
    if hasattr(config, "scratch"):
        shutil.rmtree(config.scratch, ignore_errors=True)
