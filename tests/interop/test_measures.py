"""The programs that measure run, on a small model and for few steps; what they find there is no
promise."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[0] / "cluster"))

import bench_pairs  # noqa: E402
import harness  # noqa: E402

pytest.importorskip("torch", reason="torch is not installed here")


@pytest.fixture(scope="module", autouse=True)
def built():
    if not os.path.exists(harness.CAIRN):
        pytest.skip(f"{harness.CAIRN} is not built")


def run(*words, seconds):
    """With one thread: two would wait for each other busily, and the models are small."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=seconds,
        check=False,
    )


def group(before_s, episode_s, after_s, steps=1, saves=1):
    def part(wall_s, steps, saves):
        return {
            "wall_s": wall_s,
            "cpu_s": {"trainer": 2 * wall_s},
            "steps": steps,
            "saves": saves,
            "blocked": [0.0] * saves,
        }

    return {
        "control": [part(before_s, 1, 0), part(after_s, 1, 0)],
        "episode": part(episode_s, steps, saves),
    }


def test_the_interval_of_a_median_is_that_of_its_order_statistics():
    """For 9 values the second and the eighth: the median lies outside with the probability 2 * (1 +
    9) / 2**9."""
    found = bench_pairs.estimate([9, 1, 8, 2, 7, 3, 6, 4, 5])
    assert (found.median, found.low, found.high) == (5, 2, 8) and found.coverage == pytest.approx(
        1 - 20 / 512
    )
    assert bench_pairs.estimate(range(6)) == (2.5, 0, 5, 1 - 2 / 64)
    assert (
        bench_pairs.estimate([3.0]) == (3.0, 3.0, 3.0, 0.0)
        and not bench_pairs.estimate([3.0]).is_resolved()
    )


def test_a_machine_that_slows_down_evenly_changes_no_difference():
    """Each step takes 0.1 s longer than the one before; a save takes 0.5 s, whenever it comes."""
    groups = [
        group(1 + at, 1 + at + 0.1 + 0.5, 1 + at + 0.2) for at in (0.0, 0.3, 0.6, 0.9, 1.2, 1.5)
    ]
    found = bench_pairs.per_step(groups)
    assert (found.median, found.low, found.high) == pytest.approx(
        (0.5, 0.5, 0.5)
    ) and found.is_resolved()
    assert bench_pairs.cpu_per_save(groups, lambda each: each["trainer"]).median == pytest.approx(
        1.0
    )
    assert bench_pairs.per_step(groups, always_s=0.01).median == pytest.approx(0.51)


def test_a_save_that_spans_steps_is_told_per_step_and_per_state():
    groups = [group(1.0, 6.0, 1.0, steps=4)] * 6
    assert bench_pairs.per_step(groups).median == pytest.approx(0.5)
    assert bench_pairs.per_save(groups).median == pytest.approx(2.0)
    assert bench_pairs.per_save(groups, always_s=0.25).median == pytest.approx(3.0)
    assert bench_pairs.per_save([group(1.0, 3.0, 1.0, steps=2, saves=2)]).median == pytest.approx(
        0.5
    )


def test_a_ratio_is_decided_by_all_that_the_intervals_allow():
    clear, bound = bench_pairs.estimate([1.0] * 6), 1 / 3
    assert (
        bench_pairs.ratio(bench_pairs.estimate([0.1, 0.2, 0.2, 0.2, 0.2, 0.3]), clear).is_at_most(
            bound
        )
        is True
    )
    assert (
        bench_pairs.ratio(bench_pairs.estimate([0.4, 0.5, 0.5, 0.5, 0.5, 0.6]), clear).is_at_most(
            bound
        )
        is False
    )
    wide = bench_pairs.ratio(bench_pairs.estimate([0.1, 0.2, 0.2, 0.2, 0.2, 0.9]), clear)
    assert wide.value == pytest.approx(0.2) and wide.is_at_most(bound) is None
    unresolved = bench_pairs.estimate([-0.1, 0.3, 0.3, 0.3, 0.3, 0.5])
    assert bench_pairs.ratio(clear, unresolved) == (pytest.approx(10 / 3), None, None)
    assert bench_pairs.ratio(clear, bench_pairs.estimate([-1.0] * 6)).value is None
    too_few = bench_pairs.estimate([0.1] * 3)
    assert bench_pairs.ratio(too_few, clear).is_at_most(bound) is None


def test_bench_migrate():
    """A job that is slow, and what is done about it. torchft would be downloaded, and a relaunch
    waits until it pays (test_reshape.py has one)."""
    words = ("--without", "torchft", "--without", "relaunch", "--json")
    done = run(FOLDER / "bench_migrate.py", *words, seconds=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"nothing", "cairn", "shares", "oracle", "dcp"}
    assert 0 < found["shares"]["lines_added"] < found["cairn"]["lines_added"]
    assert found["cairn"]["lines_added"] < found["dcp"]["lines_added"]
    for name in ("cairn", "shares"):
        assert found[name]["step_ms"] < found["nothing"]["step_ms"]
        assert found[name]["samples_lost"] == found[name]["steps_lost"] == 0
        assert found[name]["deviation"] < 1e-9
    assert found["dcp"]["deviation"] < 1e-9
    assert 0 < found["cairn"]["standstill_s"] < found["dcp"]["standstill_s"]


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
        "restore and first step, dcp.load",
        "restore and first step, torch.load",
        "memory",
        "start",
    }
    assert found["bounds"]["overhead"]["met"] is None, "two groups of a peer decide nothing"
    assert len(found["savers"]) == 6
    for name, each in found["savers"].items():
        assert each["blocked_s"] > 0 and 0 < each["saves_per_step"] <= 1
        copied = each["cpu_s_per_save"]["Cairn's copy"]["median"]
        assert copied > 0 if name == "cairn" else copied == pytest.approx(0, abs=0.001)
    assert (
        found["savers"]["async_save, process"]["cpu_s_per_save"]["the saver's own process"][
            "median"
        ]
        > 0
    )
    assert (
        found["snapshots"]["snapshots_captured"] > 0 and found["snapshots"]["snapshots_failed"] == 0
    )
    assert set(found["restore"]) == {"cairn", "dcp.load", "torch.load"}


@pytest.mark.parametrize("framework", ["deepspeed"])
def test_bench_attached(framework):
    if not (FOLDER.parents[1] / "build" / f"venv-{framework}").exists():
        pytest.skip(f"build/venv-{framework} is not there")
    words = ("--small", "--rounds", 1, "--framework", framework, "--json")
    done = run(FOLDER / "bench_attached.py", *words, seconds=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)[framework]
    assert set(found["bounds"]) == {"standstill", "overhead"} and found["state_bytes"] > 5 << 20
    assert found["bounds"]["overhead"]["met"] is None, "two groups decide nothing"
    assert all(each["blocked_s"] > 0 for each in found["savers"].values())
    assert found["snapshots"]["snapshots_failed"] == 0


def test_soak():
    done = run(FOLDER / "soak.py", "--steps", 80, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: nothing grew" in done.stdout
