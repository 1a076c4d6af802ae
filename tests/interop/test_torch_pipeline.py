"""Layers that move between the stages of torch.distributed.pipelining while training goes on: two
replicas of two stages over gloo. Losses and the final state are bit for bit those of the run whose
layers stayed."""
import json
import re

import pytest
from test_torch import ROOT, Run, built, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "pipeline_trainer.py")
WORLD, LAYERS = 4, 8
HOME = [[4, 4], [4, 4]]


def problem(layer_ms=8):
    """The job as the planner sees it, with room for all but one of the layers on each device."""
    half = LAYERS // 2
    pipelines = [
        {
            "microbatches": 4,
            "stages": [
                {"devices": [first], "layers": [0, half]},
                {"devices": [first + 1], "layers": [half, LAYERS]},
            ],
        }
        for first in (0, 2)
    ]
    return {
        "layers": LAYERS,
        "layer_ms": layer_ms,
        "microbatches": 8,
        "tp_cost": {"1": 1},
        "layer_bytes": 1 << 20,
        "devices": [
            {"id": rank, "node": 0, "rate": 1, "memory_bytes": (LAYERS - 1) << 20}
            for rank in range(WORLD)
        ],
        "link_gbps": {"intra": 100, "inter": 10},
        "current": {"pipelines": pipelines},
    }


@pytest.fixture
def cluster():
    options = "snapshot_every_steps: 5\nplan_policy: enforce\nverdict_policy: advise"
    with harness.Cluster(nodes=1, parity=0, state="16MiB", options=options) as made:
        with open(made.path("problem.json"), "w", encoding="utf-8") as file:
            json.dump(problem(), file)
        made.configure(0, problem=made.path("problem.json"))
        yield made.start()


def train(folder, cluster, words=(), timing=False, **options):
    wrapper = under(cluster, *words) if cluster else ()
    env = {"CAIRN_TIMING": "1"} if timing else {}
    return Run(folder, [f"'{json.dumps(options)}'"], WORLD, wrapper=wrapper, script=SCRIPT, env=env)


def ended(run):
    assert run.wait() == 0, run.errors()
    return run


def found(run, pattern):
    return [each for rank in range(WORLD) for each in re.findall(pattern, run.text(rank), re.M)]


def samples(run):
    """Losses by (step, sample); each is there once."""
    lines = found(run, r"^sample (\d+) (\d+) (\S+)$")
    values = {(int(step), int(i)): loss for step, i, loss in lines}
    assert len(values) == len(lines), "a sample was computed twice"
    return values


def state(run):
    """Digests by name; the replicas have the same."""
    lines = set(found(run, r"^state (\S+) (\S+)$"))
    assert len(dict(lines)) == len(lines), "the replicas differ"
    return dict(lines)


def test_layers_move(tmp_path, cluster):
    reference = ended(train(tmp_path, None, steps=12))
    moves = {5: [[4, 4], [[3, 5], [4, 4]]]}
    run = ended(train(tmp_path, cluster, steps=12, moves=moves))
    print(run.errors(), run.text(0))
    assert samples(run) == samples(reference)
    assert state(run) == state(reference)
