"""FSDP1 (FullyShardedDataParallel) under `cairn run`: its flat parameters under the names of the parameters in them, killed and
resumed bit for bit, and in another number of ranks."""
import re

import pytest
from test_torch import ROOT, Run, built, cluster, under  # noqa: F401: fixtures
from test_torch_more import STEPS, killed_and_resumed

SCRIPT = str(ROOT / "tests" / "interop" / "fsdp1_trainer.py")


@pytest.mark.parametrize("kind, world", [("orig", 2), ("flat", 3), ("mixed", 2), ("adagrad", 2), ("grad_op", 2), ("no_shard", 2),
                                         ("hybrid", 4)])
def test_killed_and_resumed(cluster, tmp_path, kind, world):  # noqa: F811
    killed_and_resumed(cluster, tmp_path, "fsdp1_trainer.py", [kind, STEPS], world)


def whole(cluster, tmp_path, kind, world):  # noqa: F811
    """(step, digest of everything without shards) that a resumed job of so many ranks finds, the same on all that know it."""
    run = Run(tmp_path, [kind, 0, "whole"], world, under(cluster, "--resume"), script=SCRIPT, distributed=True)
    assert run.wait() == 0, run.errors()
    (found,) = re.findall(r"^whole (\d+) (\S+)$", run.text(), re.M)
    return int(found[0]), found[1], run.errors()


@pytest.mark.parametrize("first, others", [("orig", ("flat", "no_shard")), ("flat", ("orig",))])
def test_other_number_of_ranks(cluster, tmp_path, first, others):  # noqa: F811
    """What two ranks held comes back whole on one and on three, and to those who shard in another way."""
    run = Run(tmp_path, [first, STEPS], 2, under(cluster), script=SCRIPT)
    run.kill_at(8)
    step, digest, said = whole(cluster, tmp_path, first, 2)
    assert step > 4, said
    for kind, world in [(first, 3), (first, 1), *((kind, 2) for kind in others)]:
        again, same, said = whole(cluster, tmp_path, kind, world)
        assert (again, same) == (step, digest), f"{kind} on {world}: {said}"
