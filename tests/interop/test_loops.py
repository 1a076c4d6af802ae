"""The training loops whose lines bench_migrate.py compares are real: each trains as the same loop
does without what it adds."""
import re

import pytest
from lines_added import LOOPS, PIPELINE, REPLICAS, ROOT, added
from test_torch import Run, built, harness, under  # noqa: F401: fixtures

STEPS = 6


@pytest.fixture
def cluster():
    with harness.Cluster(nodes=1, parity=0, state="16MiB") as made:
        yield made.start()


def losses(folder, script, words, world, wrapper=()):
    """By step and micro-batch."""
    run = Run(folder, words, world, wrapper=wrapper, script=str(script))
    assert run.wait() == 0, run.errors()
    text = "".join(run.text(rank) for rank in range(world))
    found = re.findall(r"^step (\d+) micro-batch (\d+) loss (\S+)$", text, re.M)
    values = {(int(step), int(i)): float(loss) for step, i, loss in found}
    assert len(values) == len(found), "a micro-batch was computed twice"
    return values


def check(got, wanted):
    assert len({loss for loss in wanted.values()}) == len(wanted)  # they tell steps apart
    assert got == pytest.approx(wanted, abs=2e-6)  # as they are printed


def test_pipelines(tmp_path, cluster):
    words = ["--steps", STEPS]
    plain = losses(tmp_path, PIPELINE, words, 4)
    assert len(plain) == STEPS * 8
    check(losses(tmp_path, ROOT / "examples" / "pipeline.py", words, 4, under(cluster)), plain)
    saved = tmp_path / "saved"
    dcp = LOOPS / "pipeline_dcp.py"
    first = losses(tmp_path, dcp, [saved, "--steps", STEPS // 2], 4)
    then = losses(tmp_path, dcp, [saved, "--steps", STEPS, "--layers", 3], 4)
    assert {step for step, _ in then} == set(range(STEPS // 2, STEPS))
    check({**first, **then}, plain)


def test_replicas(tmp_path, cluster):
    words = ["--steps", STEPS]
    plain = losses(tmp_path, REPLICAS, words, 2)
    assert len(plain) == STEPS * 12
    check(losses(tmp_path, ROOT / "examples" / "shares.py", words, 2, under(cluster)), plain)


def test_what_counts_as_a_line():
    old = '"""A loop."""\nfor step in range(9):  # nine\n    train(step)\n\n'
    new = (
        '"""Another\nloop."""\nimport cairn\n\n# comment\nfor step in range(9):  # nine\n'
        '    """None."""\n    with cairn.micro(\n        step\n    ):\n        train(step)\n'
    )
    assert added(old, new) == 4
    assert added(old, old) == added(new, old) == 0
    assert added(old, old.replace("9", "8")) == 1
