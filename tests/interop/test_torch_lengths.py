"""Sequences of different length shared among the ranks of a real PyTorch job: four ranks under
DistributedDataParallel over gloo, one becoming half as fast. Each sequence of a step is
computed once, and the gradients are those of one process that computes each sequence by itself."""
import re
import statistics

import pytest
from test_torch import ROOT, Run, built, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "lengths_trainer.py")
WORLD, MICROBATCHES, SEQUENCES = 4, 128, 160
US_PER_TOKEN = 25  # long beside what a busy machine adds to it: the measured speed follows it
SLOW_RANK, SLOW_BY, SLOW_FROM = 2, 2, 20
STEPS = 400  # at most: other load may hide the slow rank for a while
# steps that are measured. The agents judge a change 26 steps after it or later, by the clock, and
# other load may make them take it back.
LAST = 20
DEVIATION_MAX = 1e-9
OVER_SHARES_MAX = 1.005  # beside the best for the speeds that the shares say
OVER_BOUND_MAX = 1.1  # beside the best for the true speeds, which the agents measure
ASSIGN_MS_MAX = 5


@pytest.fixture
def cluster():
    with harness.Cluster(
        nodes=1,
        parity=0,
        state="4MiB",
        options="snapshot_every_steps: 100\nplan_policy: enforce\nverdict_policy: advise",
    ) as made:
        made.plan_for(harness.problem([1], [MICROBATCHES // WORLD] * WORLD, layer_ms=2))
        yield made.start()


def train(folder, cluster, *words, world=WORLD):
    """A job under the agent, or without one where there is none; it must end well."""
    wrapper = under(cluster) if cluster else ()
    run = Run(folder, words, world, wrapper=wrapper, script=SCRIPT, env={"CAIRN_TIMING": "1"})
    assert run.wait() == 0, run.errors()
    return run


def samples(run):
    """Losses by (step, sequence) of all ranks; each is there once."""
    found = [
        ((int(step), int(i)), float.fromhex(loss))
        for rank in range(run.world)
        for step, i, loss in re.findall(r"^sample (\d+) (\d+) (\S+)$", run.text(rank), re.M)
    ]
    assert len(dict(found)) == len(found), "a sequence was computed twice"
    return dict(found)


def steps(run, rank=0):
    """(emulated device's ms, wall ms, shares) of each step."""
    lines = re.findall(r"^step \d+ (\S+) (\S+)(.*)$", run.text(rank), re.M)
    return [(float(ms), float(wall), tuple(map(int, rest.split()))) for ms, wall, rest in lines]


def device_ms(run):
    """Of each step, on the rank that takes longest."""
    return [max(each) for each in zip(*([ms for ms, _, _ in steps(run, r)] for r in range(WORLD)))]


def state(run, rank):
    return [float.fromhex(x) for x in re.search(r"^state (.*)$", run.text(rank), re.M)[1].split()]


def deviation(found, wanted):
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, wanted))


def compare(run, reference):
    """Each sequence of each step once, the losses and the parameters of the reference."""
    mine, other = samples(run), samples(reference)
    assert sorted(mine) == sorted(other)
    losses = deviation([mine[key] for key in sorted(other)], [other[key] for key in sorted(other)])
    parameters = max(deviation(state(run, r), state(reference, 0)) for r in range(run.world))
    print(f"\n    largest relative deviation: losses {losses:.1e}, parameters {parameters:.1e}")
    assert max(losses, parameters) <= DEVIATION_MAX


def bound_ms(step, count, speed):
    """No assignment of the step's sequences takes less on these devices."""
    import random

    draw = random.Random(1000 + step)  # as lengths_trainer.py
    tokens = sum(min(1024, max(1, int(draw.lognormvariate(4.5, 1)))) for _ in range(count))
    return tokens * US_PER_TOKEN / 1000 / speed


def test_a_slow_rank_gets_fewer_tokens(tmp_path, cluster):
    slow = (SLOW_RANK, SLOW_BY, SLOW_FROM, STEPS, LAST)
    packed = train(tmp_path, None, "assigns", 40, SEQUENCES, US_PER_TOKEN, SLOW_RANK, 2, 0, 40)
    run = train(tmp_path, cluster, "assigns", STEPS, SEQUENCES, US_PER_TOKEN, *slow)
    made = len(steps(run))
    compare(run, train(tmp_path, None, "single", made, SEQUENCES, 0, world=1))
    shares = [counts for _, _, counts in steps(run)]
    moved = [step for step in range(1, made) if shares[step] != shares[step - 1]]
    log = [line for line in cluster.log(0).splitlines() if "replan: " in line or "detect: " in line]
    seen = "\n".join([run.errors(), *log])
    assert moved and moved[0] > SLOW_FROM, seen
    for rank in range(WORLD):
        assert [counts for _, _, counts in steps(run, rank)] == shares
    bounds = [bound_ms(step, SEQUENCES, WORLD - 1 + 1 / SLOW_BY) for step in range(made)]
    over = [ms / bound for ms, bound in zip(device_ms(run), bounds)][-LAST:]
    told = [
        max(
            ms / (SLOW_BY if rank == SLOW_RANK else 1) / shares[-1][rank]
            for rank, ms in enumerate(each)
        )
        * MICROBATCHES
        / (bound * (WORLD - 1 + 1 / SLOW_BY))
        for *each, bound in zip(*([ms for ms, _, _ in steps(run, r)] for r in range(WORLD)), bounds)
    ][-LAST:]
    equal = [bound_ms(step, SEQUENCES, WORLD - 1 + 1 / SLOW_BY) for step in range(40)]
    alone = [ms / bound for ms, bound in zip(device_ms(packed), equal)][-LAST:]
    walls = [
        statistics.median(wall for _, wall, _ in steps(each)[-LAST:]) for each in (run, packed)
    ]
    print(
        f"\n    shares {shares[-1]} from step {moved[-1]}; the slowest rank's device beside the "
        f"bound: median {statistics.median(over):.3f}, most {max(over):.3f} (for the speeds that "
        f"the shares say: {max(told):.4f}); packed alone "
        f"{statistics.median(alone):.3f}; steps {walls[0]:.1f} ms, packed alone {walls[1]:.1f} ms"
    )
    assert shares[-1] == shares[-LAST] and max(told) <= OVER_SHARES_MAX, seen
    assert statistics.median(over) <= OVER_BOUND_MAX, seen
    # equal shares: the slow rank has a quarter of the tokens, and takes 1.75 times the bound
    assert statistics.median(alone) > 1.7


def test_what_cannot_be_assigned(tmp_path):
    run = train(tmp_path, None, "bad", 4, 64, 0)
    compare(run, train(tmp_path, None, "single", 4, 64, 0, world=1))
    reasons = (
        "there are 0 lengths",
        "sequence 1 has length 0",
        "sequence 1 has length -3",
        "sequence 1 has length 2.5",
        "sequence 1 has 1025 tokens, and a micro-batch at most 1024",
        "max_tokens is 0",
        "cost is (0, 0, 0)",
        "has computed micro-batches already",
    )
    for rank in range(WORLD):
        said = re.findall(r"^refused (.*)$", run.text(rank), re.M)
        assert len(said) == len(reasons), said
        for text, reason in zip(said, reasons):
            assert reason in text


def test_fewer_sequences_than_ranks(tmp_path):
    run = train(tmp_path, None, "assigns", 5, WORLD - 1, 0)
    compare(run, train(tmp_path, None, "single", 5, WORLD - 1, 0, world=1))
    assert run.errors().count("those without one compute a sequence of another rank") == 1


@pytest.mark.parametrize("votes", [True, False])
def test_ranks_with_different_lengths(tmp_path, cluster, votes):
    run = train(tmp_path, cluster if votes else None, "differs", 140, 32, 0)
    assert run.errors().count("before step 128 the") == WORLD, run.errors()
    for rank in range(WORLD):
        assert len(steps(run, rank)) == 140


def test_what_an_assignment_takes(tmp_path):
    run = train(tmp_path, None, "assigns", 12, 4096, 0)
    for rank in range(WORLD):
        taken_us = list(map(int, re.search(r"^assign_us (.*)$", run.text(rank), re.M)[1].split()))
        median_ms, most_ms = statistics.median(taken_us) / 1000, max(taken_us) / 1000
        print(f"\n    rank {rank}: 4,096 sequences in {median_ms:.1f} ms, most {most_ms:.1f}")
        assert median_ms < ASSIGN_MS_MAX


def test_the_example(tmp_path):
    run = Run(tmp_path, ["--steps", 20], 2, script=str(ROOT / "examples" / "lengths.py"))
    assert run.wait() == 0, run.errors()
    line = r"^step (\d+) of 20: rank \d computed (\d+) of (\d+) tokens$"
    found = [re.findall(line, run.text(rank), re.M) for rank in range(2)]
    for left, right in zip(*found):
        assert left[0] == right[0] and left[2] == right[2]
        assert int(left[1]) + int(right[1]) == int(left[2])
    assert [step for step, _, _ in found[0]] == ["10", "20"]
