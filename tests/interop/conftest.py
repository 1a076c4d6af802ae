"""Where no TMPDIR is given (tests/runner.py gives one), all temporary folders of a run lie in one,
which goes with it: what killed trainers, launchers and data loaders leave is in there, too."""
import os
import shutil
import tempfile


def pytest_configure(config):
    if "TMPDIR" not in os.environ:
        config.scratch = tempfile.mkdtemp(prefix="cairn-interop-")
        os.environ["TMPDIR"] = config.scratch
        tempfile.tempdir = None  # it is looked for anew


def pytest_unconfigure(config):
    if hasattr(config, "scratch"):
        shutil.rmtree(config.scratch, ignore_errors=True)
