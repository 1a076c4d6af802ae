"""That a warm start (warm_start.py) is a start: what the script finds, how it ends, and that
neither outlives the other."""

import os
import signal
import subprocess
import sys

import pytest
import warm_start
from test_torch import harness


@pytest.fixture(scope="module")
def server():
    server = warm_start.Server(["array"])
    yield server
    server.close()


def start(server, folder, code, *words, env=None):
    (folder / "script.py").write_text(code)
    return subprocess.Popen(
        server.command(folder / "script.py", *words),
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=os.setpgrp,
    )


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# longer than any wait for its end
SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
LOOK = """
import os, sys
print(__name__, __file__, sys.argv, os.getcwd(), sys.path[:2], dict(os.environ), end=" ")
print("array" in sys.modules)
print(sys.stdin.read(), file=sys.stderr)
"""


def test_what_the_script_finds(server, tmp_path):
    """All of it is as after a cold start, but for what was imported before."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os; os.environ['MARK'] = 'seen'")
    env = {"PYTHONPATH": str(tmp_path / "site"), "WORD": "ä\udcff"}
    warm = start(server, tmp_path, LOOK, "a b", "", env=env)
    said, errors = warm.communicate("in")
    assert warm.returncode == 0 and errors == "in\n", errors
    cold = subprocess.run(
        [sys.executable, tmp_path / "script.py", "a b", ""],
        cwd=tmp_path,
        env=env,
        input="in",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert said.replace("True", "False") == cold.stdout


@pytest.mark.parametrize(
    "code, status, said",
    [
        ("", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import atexit; atexit.register(print, 'ended'); 1 // 0", 1, "ended\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_how_it_ends(server, tmp_path, code, status, said):
    client = start(server, tmp_path, code)
    assert client.communicate()[0] == said
    assert client.returncode == status


def test_the_trainer_ends_with_its_client(server, tmp_path):
    client = start(server, tmp_path, SLEEP)
    pid = int(client.stdout.readline())
    assert is_alive(pid) and os.getpgid(pid) == client.pid
    client.kill()
    client.wait()
    harness.wait_for("the end of the trainer", lambda: not is_alive(pid))


def test_told_to_end(server, tmp_path):
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("ready", flush=True)
time.sleep(60)
"""
    client = start(server, tmp_path, code)
    assert client.stdout.readline() == "ready\n"
    client.terminate()
    assert client.wait(timeout=30) == 3


@pytest.mark.parametrize(
    "end, status",
    [(warm_start.Server.close, 0), (lambda server: server.process.kill(), -signal.SIGKILL)],
)
def test_all_end_with_the_server(tmp_path, end, status):
    server = warm_start.Server([])
    client = start(server, tmp_path, SLEEP)
    pid = int(client.stdout.readline())
    end(server)
    assert server.process.wait(timeout=30) == status
    assert client.wait(timeout=30) != 0
    harness.wait_for("the end of the trainer", lambda: not is_alive(pid))
    server.close()
