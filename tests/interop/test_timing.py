"""Timing records of collectives: found and read from outside, in order, with the right bytes;
results and errors are those without them."""
import os
import re
import sys

import pytest
from test_torch import ROOT, Run, built, harness  # noqa: F401: fixtures

sys.path.insert(0, str(ROOT / "tests" / "traces" / "recorded"))

from rings import read_ring  # noqa: E402

SCRIPT = str(ROOT / "tests" / "interop" / "timing_trainer.py")
NAMES = {
    1: "all_reduce",
    2: "broadcast",
    4: "all_gather",
    5: "reduce_scatter",
    6: "all_to_all",
    9: "barrier",
    10: "send",
}


def trainer_pids(run):
    """By rank."""
    found = {}
    for pid in harness.pids_with(SCRIPT, "stay"):
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = dict(
                each.split(b"=", 1) for each in file.read().split(b"\0") if b"=" in each
            )
        if os.getpgid(pid) == run.process.pid and b"RANK" in environment:
            found[int(environment[b"RANK"])] = pid
    return found


def lines(run, rank, word):
    return re.findall(rf"^{word} (.*)$", run.text(rank), re.M)


def test_records(tmp_path):
    plain = Run(tmp_path, [], 2, script=SCRIPT)
    assert plain.wait() == 0, plain.errors()
    hooks = {
        "CAIRN_TIMING": "1",
        "CAIRN_AGENT": str(tmp_path / "no-agent"),
        "PYTHONPATH": str(ROOT / "bindings" / "python" / "cairn" / "autoload"),
    }
    # its processes are found by their own words
    run = Run(tmp_path, ["stay"], 2, env=hooks, script=SCRIPT, start="cold")
    try:
        harness.wait_for(
            "ready",
            lambda: all("ready" in run.text(rank) for rank in range(2))
            or run.process.poll() is not None,
        )
        pids = trainer_pids(run)
        assert sorted(pids) == [0, 1], run.errors()
        records, dropped = zip(*(read_ring(pids[rank]) for rank in range(2)))
    finally:
        run.kill()
    for rank in range(2):
        for word in ("result", "error"):
            assert (
                lines(run, rank, word) == lines(plain, rank, word) != []
            ), f"{word} of rank {rank}: {run.errors()}"
    assert dropped == (0, 0)
    assert "not timed" not in run.errors(), run.errors()
    check(records)
    costs = [int(lines(each, rank, "cost")[0]) / 1000 for each in (plain, run) for rank in range(2)]
    added = min(costs[2:]) - min(costs[:2])
    print(
        f"\n    an all_reduce of 24 bytes within one rank: {min(costs[:2]):.1f} us without, "
        f"{min(costs[2:]):.1f} us with, {added:.1f} us added"
    )


def check(records):
    works = [[each for each in of if each["op"] == 0x101] for of in records]
    assert [[(each["rank"], each["bytes"]) for each in of] for of in works] == [
        [(0, 1000)],
        [(1, 1001)],
    ]
    records = [[each for each in of if each["op"] != 0x101] for of in records]
    entered = [[each for each in of if each["end_ns"] == 0] for of in records]
    world = [[each for each in of if each["ranks"] == 2] for of in entered]
    for rank, of in enumerate(world):
        assert {each["rank"] for each in of} == {rank}
        assert [each["enter_ns"] for each in of] == sorted(each["enter_ns"] for each in of)
        together = [each for each in of if each["op"] < 10]
        assert [each["seq"] for each in together] == list(range(1, len(together) + 1))
    # Both ranks name the communicator, and number what they do in it, alike.
    keys = [
        [(each["comm"], each["seq"], each["op"]) for each in of if each["op"] < 10] for of in world
    ]
    assert keys[0] == keys[1] and len({key[0] for key in keys[0]}) == 1
    first = [(NAMES[each["op"]], each["bytes"]) for each in world[0]]
    assert first[:7] == [
        ("all_reduce", 24),
        ("broadcast", 24),
        ("all_gather", 24),
        ("reduce_scatter", 24),
        ("all_to_all", 24),
        ("send", 8),
        ("barrier", 0),
    ]
    assert first[7] == ("all_reduce", 10)  # the functional one, of bfloat16 and in inference mode
    assert ("all_reduce", 4 * (8 * 4 + 4)) in first[8:]  # DDP's bucket: weight and bias
    sent, received = (next(each for each in of if each["op"] in (10, 11)) for of in world)
    assert (sent["op"], sent["peer"], sent["seq"]) == (10, 1, 0) and (
        received["op"],
        received["peer"],
    ) == (11, 0)
    # A group of one rank has another name on each.
    own = [{each["comm"] for each in of if each["ranks"] == 1} for of in entered]
    assert len(own[0]) == len(own[1]) == 1 and own[0] != own[1]
    for of in records:
        ended = {(each["comm"], each["seq"]): each for each in of if each["end_ns"]}
        for each in of:
            if each["end_ns"] == 0 and each["op"] in (1, 2, 4, 6, 9) and each["seq"] < 8:
                end = ended[each["comm"], each["seq"]]
                assert (
                    end["end_ns"] > end["enter_ns"] == each["enter_ns"]
                    and end["bytes"] == each["bytes"]
                )


@pytest.mark.parametrize("amount", [0, -1, 0.5, float("nan"), float("inf"), 1 << 64])
def test_an_amount_of_work_that_is_none(monkeypatch, amount):
    """Refused whether collectives are timed or not: a script must not fail only where they are."""
    monkeypatch.syspath_prepend(str(ROOT / "bindings" / "python"))
    import cairn

    with pytest.raises(ValueError):
        cairn.note_work(amount)
