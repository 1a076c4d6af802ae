"""Real libraries under `cairn run`, by unmodified programs: tests/interop/apps, without attach.

    apps.py [WORD]       only programs whose names contain the word

Each program runs without Cairn, then under `cairn run`, where all states and losses must be the
same; then it is killed in the middle, and resumed. One line each says what was the same from the
first update after the resumption on: the parameters before it (state), and the losses after it.
Exits 1 if a program differs from its expectation below. `make interop-apps` runs it in
build/venv-apps.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402

APPS = ROOT / "tests" / "interop" / "apps"
STEPS, KILLED_AT = 24, 13
# what comes back: state, then losses too. "refused": Cairn takes no snapshots and reports why.
EXPECTED = {"torchao_8bit": "refused", "nanogpt": "state"}
PACKAGES = {
    "hf_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_fit": "lightning",
    "peft_lora": "peft",
    "schedule_free": "schedulefree",
    "bitsandbytes_8bit": "bitsandbytes",
    "torchao_8bit": "torchao",
    "timm_model": "timm",
}
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("CAIRN_") and name != "PYTHONPATH"
}


def start(folder, name, wrapper=()):
    out, err = os.path.join(folder, "out"), os.path.join(folder, "err")
    with open(out, "wb") as output, open(err, "wb") as errors:
        process = subprocess.Popen(
            [*wrapper, sys.executable, "-u", str(APPS / f"{name}.py")],
            env=CLEAN,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    return process, out, err


def read(out):
    """(state, loss) by update, from the program's start."""
    found = re.findall(r"^at (\d+) (\S+) (\S+)$", harness.text_of(out), re.M)
    return [(state, loss) for _, state, loss in found]


def whole(folder, name, wrapper=()):
    """A run that nobody kills: (what it printed, its standard error)."""
    process, out, err = start(folder, name, wrapper)
    try:
        status = process.wait(600)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert status == 0, f"{name} ended with {status}: {harness.text_of(err)[-2000:]}"
    return read(out), harness.text_of(err)


def killed(folder, name, wrapper):
    """Runs until the middle, then kill -9 of all of it."""
    process, out, err = start(folder, name, wrapper)
    until = time.monotonic() + 600
    while len(read(out)) < KILLED_AT and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    alive = process.poll() is None
    os.killpg(process.pid, 9)
    process.wait()
    assert alive, f"{name} ended before it was killed: {harness.text_of(err)[-2000:]}"


def run(name):
    """(what came back, a line on it)."""
    with tempfile.TemporaryDirectory() as folder:
        reference, _ = whole(folder, name)
        assert len(reference) == STEPS, f"{name} made {len(reference)} updates"
        with harness.Cluster(nodes=1, parity=0, state="16MiB") as cluster:
            cluster.start()
            under = [harness.CAIRN, "run", "--agent", cluster.socket(0), "--"]
            same, said = whole(folder, name, under)
            assert same == reference, f"{name} trains differently under cairn run"
            if "no snapshots are taken" in said:
                why = re.search(r"no snapshots are taken: (.*)", said).group(1)
                return "refused", f"losses unchanged; {why[:100]}"
        with harness.Cluster(nodes=1, parity=0, state="16MiB") as cluster:
            cluster.start()
            under = [harness.CAIRN, "run", "--agent", cluster.socket(0)]
            killed(folder, name, [*under, "--"])
            first = cluster.committed()[1]
            assert first > 0, f"{name}: nothing was committed"
            after, said = whole(folder, name, [*under, "--resume", "--"])
            resumed = re.search(r"the state after update (\d+)", said)
            assert resumed, f"{name} did not resume: {said[-2000:]}"
            first = int(resumed.group(1))
    expected = reference[first:]
    states = after[0][0] == expected[0][0]
    losses = after[: len(expected)] == expected
    what = "losses" if losses else "state" if states else "nothing"
    equal = next((i for i, each in enumerate(expected) if after[i] != each), len(expected))
    return what, f"resumed after update {first}; {equal} of {len(expected)} further updates equal"


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    wrong = 0
    for path in sorted(APPS.glob("*.py")):
        name = path.stem
        if name == "report" or word not in name:
            continue
        package = PACKAGES.get(name, "torch")
        if subprocess.run(
            [sys.executable, "-c", f"import {package}"], env=CLEAN, capture_output=True
        ).returncode:
            print(f"skipped {name}: {package} cannot be imported", flush=True)
            continue
        try:
            what, line = run(name)
        except AssertionError as error:
            what, line = "failed", str(error)
        good = what == EXPECTED.get(name, "losses")
        wrong += not good
        print(f"{'ok' if good else 'FAIL':7} {name}: {what}; {line}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
