"""Layers that move between the stages of torch.distributed.pipelining while training goes on: two
replicas of two stages over gloo. Losses and the final state are bit for bit those of the run whose
layers stayed."""
import contextlib
import hashlib
import json
import re
import statistics
import struct

import pytest
from test_torch import ROOT, Run, built, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "pipeline_trainer.py")
WORLD, LAYERS, LAYER_MS = 4, 8, 4
HOME = [[4, 4], [4, 4]]
SLOW_RANK, SLOW_BY, SLOW_FROM, STEPS_AFTER = 2, 4, 12, 8
DEVIATION_MAX = 1e-9


def problem(room=LAYERS - 1):
    """The job as the planner sees it, with room for so many layers on each device."""
    job = harness.problem([LAYERS // 2] * 2, [4, 4], LAYER_MS, memory_bytes=room << 20)
    for device in job["devices"]:
        device["node"] = 0
    return job


@contextlib.contextmanager
def agents(every=5, policy="enforce", **job):
    options = f"snapshot_every_steps: {every}\nplan_policy: {policy}\nverdict_policy: advise"
    with harness.Cluster(nodes=1, parity=0, state="16MiB", options=options) as made:
        made.plan_for(problem(**job))
        yield made.start()


@pytest.fixture
def cluster():
    with agents() as made:
        yield made


def splits(run, rank=0):
    """By step."""
    lines = re.findall(r"^step \d+ (.*)$", run.text(rank), re.M)
    return [json.loads(each)[1] for each in lines]


def train(folder, cluster, words=(), shape=(), timing=False, start="warm", **options):
    wrapper = under(cluster, *words) if cluster else ()
    env = {"CAIRN_TIMING": "1"} if timing else {}
    words = [f"'{json.dumps(options)}'", *shape]
    return Run(folder, words, WORLD, wrapper=wrapper, script=SCRIPT, env=env, start=start)


def ended(run):
    assert run.wait(240) == 0, run.errors()
    return run


def found(run, pattern):
    return [each for rank in range(WORLD) for each in re.findall(pattern, run.text(rank), re.M)]


def samples(run):
    """Losses by (step, sample); each is there once. A second pass is half a step later."""
    lines = found(run, r"^sample (\S+) (\d+) (\S+)$")
    values = {(float(step), int(i)): loss for step, i, loss in lines}
    assert len(values) == len(lines), "a sample was computed twice"
    return values


def norms(run):
    """By step; all ranks have the same."""
    lines = set(found(run, r"^norm (\d+) (\S+)$"))
    assert len(dict(lines)) == len(lines), "the ranks' norms differ"
    return dict(lines)


def state(run):
    """Digests by name; the replicas have the same."""
    lines = set(found(run, r"^state (\S+) (\S+)$"))
    assert len(dict(lines)) == len(lines), "the replicas differ"
    return dict(lines)


STEPS = 26
COMMON = {"steps": STEPS, "dropout": 0.25, "rng": "counter", "passes": 2}
EXACT = {"dtype": "float64", "steps": 12}
SPLITS = [[[3, 5], [4, 4]], [[3, 5], [2, 6]], [[4, 4], [7, 1]], HOME]
MOVES = 20
KILLED_RANK = 2
GROUPS = 3  # of each rank: the job, its pipeline, the holders of its layers
FDS_MORE, KIB_MORE = 4, 4096  # at the end than after the first round of moves


@pytest.fixture(scope="module", autouse=True)
def references(tmp_path_factory):
    """The runs whose layers stay, without agents."""
    folder = tmp_path_factory.mktemp("stays")
    return [train(folder, None, **COMMON), train(folder, None, **EXACT)]


def check_same(run, reference):
    """C1 and C4."""
    assert samples(run) == samples(ended(reference))
    assert state(run) == state(reference)
    assert norms(run) == norms(reference)


def check_rounding(run, reference):
    """C3 and C4: in another order of summation losses differ by rounding alone."""
    mine, other = samples(run), samples(ended(reference))
    assert mine.keys() == other.keys()
    pairs = [(float.fromhex(mine[key]), float.fromhex(other[key])) for key in mine]
    deviation = max(abs(one - two) / abs(two) for one, two in pairs)
    print(f"\n    the largest relative deviation of a loss is {deviation:.1e}")
    assert 0 < deviation <= DEVIATION_MAX


def test_layers_move_back_and_forth(tmp_path, cluster, references):
    moves = {3 + i: [[4, 4], SPLITS[i % len(SPLITS)]] for i in range(MOVES)}
    run = ended(train(tmp_path, cluster, moves=moves, take=True, schedule="gpipe", **COMMON))
    check_same(run, references[0])
    for rank in range(WORLD):
        assert splits(run, rank) == [
            SPLITS[min(step - 3, MOVES - 1) % len(SPLITS)] if step >= 3 else HOME
            for step in range(STEPS)
        ], run.errors()
        lines = re.findall(r"^held (.*)$", run.text(rank), re.M)
        held = [list(map(int, each.split())) for each in lines]
        assert len(held) == MOVES
        first, last = held[len(SPLITS) - 1], held[-1]  # of the same placement
        print(f"\n    rank {rank}: descriptors, groups, KiB, threads {first} -> {last}")
        assert last[0] <= first[0] + FDS_MORE, held
        assert last[1] == first[1] == GROUPS, held
        assert last[2] <= first[2] + KIB_MORE, held
    stood = sorted(float(each) for each in found(run, r"^stood \d+ (\S+)$"))
    print(f"\n    stood still {stood[len(stood) // 2]:.0f} ms, at most {stood[-1]:.0f}")


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler(tmp_path, cluster, fused):
    """An overflow in one layer skips the update in all stages, wherever the layer is; layers move
    right before it and as soon as they can after it: in the next step only if the kernel skips."""
    options = {**COMMON, "steps": 9, "inf": 4, "fused": fused}
    reference = train(tmp_path, None, **options)
    after = 5 if fused else 6
    moves = {3: [[4, 4], SPLITS[0]], after: [[4, 4], SPLITS[2]]}
    run = ended(train(tmp_path, cluster, moves=moves, take=True, **options))
    check_same(run, reference)
    assert splits(run) == [HOME] * 3 + [SPLITS[0]] * (after - 3) + [SPLITS[2]] * (9 - after)
    for each in (run, reference):
        scales = [re.findall(r"^scale \d+ (.*)$", each.text(rank), re.M) for rank in range(WORLD)]
        assert scales == [["4096.0"] * 3 + ["8192.0"] + ["4096.0"] * 4 + ["8192.0"]] * WORLD
    counts = {name: digest for name, digest in state(run).items() if name.startswith("step.")}
    eight = hashlib.sha256(struct.pack("f", 8)).hexdigest()[:16]
    assert set(counts.values()) == {eight} and len(counts) == 2 * LAYERS + 2, counts
    # a skip inside the kernel counts as an update
    harness.wait_for("the end is committed", lambda: cluster.committed()[1] == 8 + fused)


def test_stages_that_skip_alone(tmp_path, cluster):
    """A script that does not give reduce_gradients its scaler trains on as it would by itself."""
    run = train(tmp_path, cluster, **{**COMMON, "steps": 7, "max_norm": None}, inf=4, alone=True)
    ended(run)
    steps = [len(splits(run, rank)) for rank in range(WORLD)]
    assert steps == [7] * WORLD, run.errors()
    scales = [re.findall(r"^scale 4 (.*)$", run.text(rank), re.M) for rank in range(WORLD)]
    assert scales == [["4096.0"], ["8192.0"]] * 2, run.errors()


def test_a_build_that_fails(tmp_path, cluster, references):
    """All ranks go on as before. After one that hangs nothing moves any more."""
    offered = [[4, 4], SPLITS[0]]
    run = ended(
        train(
            tmp_path,
            cluster,
            moves={step: offered for step in (3, 5, 7, 9, 11)}
            | {2: [[7, 1], HOME], 8: [[4, 4], HOME]},
            bad={3: [2, "raises"], 5: [1, "names"], 9: [3, "hangs"]},
            timeout_s=2,
            strict=True,
            **COMMON,
        )
    )
    check_same(run, references[0])
    assert splits(run) == [SPLITS[0] if step == 7 else HOME for step in range(STEPS)], run.errors()
    said = re.findall(r"^cairn.*?: (step .*)$", run.errors(), re.M)
    print("\n    " + "\n    ".join(said))
    assert len(said) == 4, run.errors()
    for line, words in zip(
        said,
        (
            ("step 2", "rank 2: ValueError", "as before"),
            ("step 3", "rank 2: ArithmeticError: no such layer", "as before"),
            ("step 5", "lacks buffer layers.", "as before"),
            ("step 9", "rank 3: build has not returned", "from now on"),
        ),
    ):
        assert all(each in line for each in words), line


def test_other_shares(tmp_path, cluster, references):
    moves = {3: [[5, 3], HOME], 5: [[6, 2], [[3, 5], [4, 4]]], 8: [[4, 4], [[3, 5], [4, 4]]]}
    run = ended(train(tmp_path, cluster, moves=moves, **EXACT))
    counts = [json.loads(each)[0] for each in re.findall(r"^step \d+ (.*)$", run.text(0), re.M)]
    assert counts == [[4, 4]] * 3 + [[5, 3]] * 2 + [[6, 2]] * 3 + [[4, 4]] * 4, run.errors()
    check_rounding(run, references[1])


def test_a_move_is_a_restart_in_the_next_placement(tmp_path, cluster):
    """C2, with dropout by each rank's own generator."""
    at, last, split = 4, 9, [[2, 6], [5, 3]]
    common = {"dropout": 0.25, "width": 8}
    ended(train(tmp_path, cluster, steps=at, **common))
    again = ended(train(tmp_path, cluster, ["--resume"], steps=last, layers=split, **common))
    with agents() as others:
        moved = ended(train(tmp_path, others, steps=last, moves={at: [[4, 4], split]}, **common))
    assert splits(moved) == [HOME] * at + [split] * (last - at), moved.errors()
    later = {key: loss for key, loss in samples(moved).items() if key[0] >= at}
    assert samples(again) == later, again.errors()
    assert state(again) == state(moved)


@pytest.mark.parametrize("victim", ["rank", "agent"])
def test_deaths_inside_a_move(tmp_path, references, victim):
    """A rank, or the agent of all ranks, gets SIGKILL at each point of a move. What comes back, and
    what goes on without an agent, is bit for bit the run whose layers stayed."""
    deaths = zip(("enter", "fill", "vote", "adopt"), (*SPLITS[:3], SPLITS[0]))
    options = {**COMMON, "schedule": "gpipe", "take": True}
    expected = samples(ended(references[0]))
    with agents(every=1) as cluster:
        for number, (point, split) in enumerate(deaths):
            at = 6 + 4 * number
            pid = cluster.agents[0].pid if victim == "agent" else 0
            run = train(
                tmp_path,
                cluster,
                ["--resume"] if number else [],
                **{**options, "steps": at + 2},
                moves={at: [[4, 4], split]},
                death=[at, point, KILLED_RANK, pid],
            )
            run.wait(120)
            assert f"kills {pid}" in run.text(KILLED_RANK), run.errors()
            losses = samples(run)
            assert losses.items() <= expected.items(), run.errors()
            if victim == "agent":
                assert max(losses)[0] == at + 1.5, run.errors()
                now = split if point in ("vote", "adopt") else HOME
                assert splits(run)[-1] == now, run.errors()
                cluster.kill_agent(0)
                cluster.start(0)
            elif point != "adopt":
                assert not found(run, r"^stood (.*)$"), "a rank has adopted without the last vote"
        last = train(
            tmp_path, cluster, ["--resume"], moves={at + 3: [[4, 4], SPLITS[0]]}, **options
        )
        losses = samples(ended(last))
    first = min(losses)[0]
    assert 6 < first <= at + 2, last.errors()
    assert losses == {key: loss for key, loss in expected.items() if key[0] >= first}
    assert state(last) == state(references[0])
    assert splits(last)[-1] == SPLITS[0], last.errors()


def test_layers_leave_a_slow_rank(tmp_path, cluster):
    """By the agents' own offers: shares first, then layers."""
    slow = [SLOW_RANK, SLOW_BY, SLOW_FROM, 10**6]
    run = train(
        tmp_path, cluster, timing=True, steps=600, after=STEPS_AFTER, layer_ms=LAYER_MS, slow=slow
    )
    ended(run)
    log = [line for line in cluster.log(0).splitlines() if "replan: " in line or "detect: " in line]
    seen = "\n".join([run.errors(), *log])
    took = [float(each) for each in re.findall(r"^took \d+ (.*)$", run.text(0), re.M)]
    now = splits(run)
    moved = [step for step in range(1, len(now)) if now[step] != now[step - 1]]
    assert moved and moved[0] > SLOW_FROM, seen
    assert now[-1][SLOW_RANK // 2][SLOW_RANK % 2] < LAYERS // 2, seen
    before = statistics.median(took[SLOW_FROM : SLOW_FROM + 6])
    after = statistics.median(took[moved[-1] + 1 :])
    print(f"\n    layers {now[-1]} from step {moved} on: {before:.0f} -> {after:.0f} ms a step")
    assert after < 0.75 * before, seen
    assert samples(run).keys() == {(step, i) for step in range(len(now)) for i in range(8)}
