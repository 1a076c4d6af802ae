"""The programs that measure run, on a small model and for few steps; what they find there is no promise."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[0] / "cluster"))

import harness  # noqa: E402

pytest.importorskip("torch", reason="torch is not installed here")


@pytest.fixture(scope="module", autouse=True)
def built():
    if not os.path.exists(harness.CAIRN):
        pytest.skip(f"{harness.CAIRN} is not built")


def run(*words, seconds):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_bench_peers():
    """It ends only when all three restores brought back the bits that were saved."""
    done = run(FOLDER / "bench_peers.py", "--small", "--rounds", 1, "--json", seconds=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["bounds"]) == {
        "blocked",
        "blocked, staged behind",
        "overhead",
        "overhead, staged behind",
        "restore, dcp.load",
        "restore, torch.load",
        "memory",
        "start",
    }
    assert len(found["savers"]) == 6 and all(each["blocked_s"] > 0 for each in found["savers"].values())
    assert found["snapshots"]["snapshots_captured"] > 0 and found["snapshots"]["snapshots_failed"] == 0
    assert set(found["restore"]) == {"cairn", "dcp.load", "torch.load"}


def test_soak():
    done = run(FOLDER / "soak.py", "--steps", 80, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: nothing grew" in done.stdout
