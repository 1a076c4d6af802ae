"""The position in the data: jobs that are killed in the middle of a pass, and resumed, read each
sample once and in the order of the run that was not killed, also in another number of ranks."""

import functools
import importlib.util
import itertools
import pathlib
import re
import tempfile

import pytest
from test_torch import ROOT, Run, built, cluster, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "data_trainer.py")
STEPS, HOLD_AT, SAMPLES = 18, 13, 60  # 5 steps a pass: it is held in the third


def ids(run, world, first=0):
    """By step: the samples of all ranks, in the order of the ranks, and each rank's epoch."""
    found = {}
    for rank in range(world):
        lines = re.findall(r"^ids (\d+) (\d+) (\S+)$", run.text(rank), re.M)
        for step, _epoch, samples in lines:
            read = found.setdefault(int(step) + first, {})
            assert rank not in read, "a step was done twice"
            read[rank] = list(map(int, samples.split(",")))
    return {step: [read[rank] for rank in sorted(read)] for step, read in found.items()}


def losses(run, first=0):
    found = re.findall(r"^loss (\d+) (\S+)$", run.text(), re.M)
    return {int(step) + first: loss for step, loss in found}


def flat(read):
    return sorted(sample for each in read for sample in each)


def train(folder, world, source, words, wrapper=(), hold_at=None, steps=STEPS):
    run = Run(
        folder,
        [source, steps, *words],
        world,
        wrapper,
        script=SCRIPT,
        hold_at=hold_at,
        env={"TRAINER_PAUSE_S": "0.02"},
    )
    if hold_at is None:
        assert run.wait(120) == 0, run.errors()
    return run


def killed(folder, cluster, world, source, words, hold_at=HOLD_AT):  # noqa: F811
    """A run that stood still before the step, and was killed when the updates before the last were
    committed: (run, the step that a resumption goes on from)."""
    run = train(folder, world, source, words, under(cluster), hold_at)
    committed = [0]

    def is_recent():
        """A busy machine may leave a snapshot out, and then no step follows: that will do."""
        committed.append(cluster.committed()[1])
        stood = len(committed) > 40 and committed[-40] == committed[-1] >= hold_at - 5
        return committed[-1] >= hold_at - 1 or stood or run.process.poll() is not None

    harness.wait_for("a snapshot", is_recent, 5)
    assert run.process.poll() is None, run.errors()
    run.kill()
    return run, cluster.committed()[1]


def resumed(folder, cluster, world, source, words, steps=STEPS):  # noqa: F811
    """(run, its first step): an unchanged script counts from 0."""
    if "attach" not in words:
        steps -= cluster.committed()[1]
    run = train(folder, world, source, words, under(cluster, "--resume"), steps=steps)
    first = int(re.search(r"the state after update (\d+)", run.errors()).group(1))
    return run, first


def missing(source):
    """Sources of packages that are not installed here."""
    package = {"stateful": "torchdata", "stateful-map": "torchdata", "datasets": "datasets"}
    package["shard"] = "accelerate"
    return source in package and importlib.util.find_spec(package[source]) is None


@functools.lru_cache(maxsize=None)
def reference(source):
    """What four ranks read that nobody kills."""
    with tempfile.TemporaryDirectory() as folder:
        return ids(train(pathlib.Path(folder), 4, source, []), 4)


@pytest.mark.parametrize(
    "source, words",
    [
        *itertools.product(
            ["distributed", "stateful-map", "megatron", "megatron-random"], [["attach"], []]
        ),
        ("shard", []),
    ],
)
def test_four_ranks_become_three(cluster, tmp_path, source, words):  # noqa: F811
    """Step s trains on the same samples in both numbers of ranks, whose batch is the same."""
    if missing(source):
        pytest.skip("its package is not installed here")
    words = [*words, "workers"]
    expected = reference("distributed" if "stateful" in source else source)
    before, first = killed(tmp_path, cluster, 4, source, words)
    after, start = resumed(tmp_path, cluster, 3, source, words)
    assert start == first, after.errors()
    read = {step: each for step, each in ids(before, 4).items() if step < first}
    again = ids(after, 3, 0 if "attach" in words else first)
    assert sorted(again) == list(range(first, STEPS)) and all(len(e) == 3 for e in again.values())
    read.update(again)
    for step in range(STEPS):
        assert flat(read[step]) == flat(expected[step]), f"step {step}: {after.errors()}"
    for step in range(0, STEPS - 5, 5):  # each pass has each sample once
        whole = [sample for i in range(step, step + 5) for each in read[i] for sample in each]
        assert sorted(whole) == list(range(SAMPLES))


@pytest.mark.parametrize("words", [["samples=65"], ["sharded"]])
def test_another_order(cluster, tmp_path, words):  # noqa: F811
    """Megatron's random sampler shuffles 63 samples of 65 in micro-batches of 3, and 64 in those of
    4, and with data_sharding within each replica: the loader begins at its start, and each rank
    reports why."""
    words = ["attach", *words]
    killed(tmp_path, cluster, 4, "megatron-random", words)
    after, first = resumed(tmp_path, cluster, 3, "megatron-random", words)
    lines = [line for line in after.errors().splitlines() if "the position in" in line]
    assert len(lines) == 3 and len({line.split(": ", 1)[1] for line in lines}) == 1, lines
    assert min(ids(after, 3)) == first and len(ids(after, 3)) == STEPS - first


# held at, source, words: inside of a pass, or right behind its last batch
ALONE = [
    (13, "random", []),
    (11, "random", ["attach", "workers"]),
    (13, "random", ["workers", "persistent", "evaluate"]),
    (11, "random", ["workers", "persistent"]),
    (13, "random", ["ahead"]),
    (13, "generator", ["attach", "workers"]),
    (11, "generator", []),
    (7, "distributed", []),
    (14, "stream", ["workers"]),
    (13, "megatron", ["attach", "workers"]),
    (13, "stateful", ["attach", "workers"]),
    (13, "stateful", []),
    (13, "datasets", ["attach"]),
    (13, "datasets", ["workers", "buffer"]),
]


@pytest.mark.parametrize("hold_at, source, words", ALONE)
def test_goes_on_bit_for_bit(cluster, tmp_path, hold_at, source, words):  # noqa: F811
    """Killed in a pass, and right behind its last batch: samples and losses are those of the run
    that was not killed, however much was prefetched."""
    if missing(source):
        pytest.skip("its package is not installed here")
    plain = [word for word in words if word != "attach"]
    reference = train(tmp_path, 1, source, plain)
    before, first = killed(tmp_path, cluster, 1, source, words, hold_at)
    after, start = resumed(tmp_path, cluster, 1, source, words)
    assert start == first, after.errors()
    shift = 0 if "attach" in words else first
    read = {step: each for step, each in ids(before, 1).items() if step < first}
    read.update(ids(after, 1, shift))
    assert read == ids(reference, 1), after.errors()
    expected = losses(reference)
    assert losses(after, shift) == {s: expected[s] for s in range(first, STEPS)}, after.errors()


def test_two_loaders_of_like_datasets(cluster, tmp_path):  # noqa: F811
    """An unchanged script reads both at once: nothing tells their positions apart."""
    run = train(tmp_path, 1, "random", ["beside"], under(cluster), steps=4)
    assert sorted(ids(run, 1)) == list(range(4))
    (line,) = [each for each in run.errors().splitlines() if "two loaders with such" in each]
    assert "Numbers" in line and "cairn.attach(model, optimizer, dataloader=loader)" in line
