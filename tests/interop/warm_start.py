"""Trainers that start warm: a process that has imported PyTorch, maybe DeepSpeed or Megatron-Core,
and nothing of Cairn, forks one for each client that asks.

Importing them takes longer than the jobs of these tests do. What `cairn run` starts is then
warm_client.py, which hands its arguments, environment, folder, process group and standard files
over. The fork takes them on, does what Python's start does with such an environment (so the hooks
come in by PYTHONPATH and sitecustomize as ever), and runs the script as __main__. It ends when its
client does, and the client ends as it did. What differs from a cold start: torch is there when
sitecustomize runs, the trainer is not a child of `cairn run`, and /proc/PID/cmdline and environ are
those of the server. So of each way to start some tests start cold.

    warm_start.py LISTENER MODULE...    the server, which imports the modules. LISTENER: the number
                                        of an inherited descriptor. It ends with its standard input,
                                        and all trainers with it.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from typing import Any, Dict, List, Optional, Sequence, Tuple

CLIENT = pathlib.Path(__file__).resolve().parent / "warm_client.py"
REQUEST_BYTES_MAX = 1 << 20
PR_SET_PDEATHSIG = 1
# What trainers import, and what torch itself does only when the first optimizer or the first
# sharded model is made.
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.tensor.parallel",
)


class Server:
    """A server of this process; at the latest it ends with it."""

    def __init__(
        self,
        modules: Sequence[str],
        python: str = sys.executable,
        env: Optional[Dict[str, str]] = None,
    ) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("")  # the kernel chooses a name, which lies in no folder
            listener.listen(128)
            self.name = listener.getsockname()[1:].decode()
            self.process = subprocess.Popen(
                [python, __file__, str(listener.fileno()), *modules],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith("CAIRN_") and name != "PYTHONPATH"
                }
                | (env or {}),
            )

        atexit.register(self.close)

    def close(self) -> None:
        """Ends it, and all trainers with it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def command(self, script: object, *words: object) -> List[str]:
        """The command line by which the script starts warm with these arguments.

        It must run in a process group of this process's session: only there the trainer can join
        it.
        """
        return [sys.executable, "-I", "-S", str(CLIENT), self.name, str(script), *map(str, words)]


# By the name of a framework's virtual environment: what its trainers import as well, and in which
# environment.
FRAMEWORKS: Dict[str, Tuple[Tuple[str, ...], Dict[str, str]]] = {
    "venv-deepspeed": (
        # the last one when the first engine is made
        ("deepspeed_pipeline", "deepspeed_trainer", "deepspeed.runtime.zero.muon.muon_optimizer"),
        {"DS_ACCELERATOR": "cpu"},
    ),
    "venv-megatron": (("megatron_dist_worker", "megatron.core.pipeline_parallel"), {}),
}


@functools.lru_cache(maxsize=None)
def server(python: str = sys.executable) -> Server:
    """The one for jobs of this Python, started when it is first asked for."""
    modules, env = FRAMEWORKS.get(pathlib.Path(python).parent.parent.name, ((), {}))
    return Server((*PRELOADED, *modules), python, env)


# ---- in the server, and what its forks become ----


def tell(client: socket.socket, what: int) -> None:
    with contextlib.suppress(OSError):  # it is gone
        client.send(str(what).encode())


def die_with(parent: int) -> None:
    """Of a fork: it is killed when its parent ends, however that does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that call
        os._exit(1)


def end_of(trainers: Dict[socket.socket, int]) -> None:
    """Tells the clients of trainers that have ended how they did."""
    for client, pid in list(trainers.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            tell(client, os.waitstatus_to_exitcode(status))
            del trainers[client]
            client.close()


def serve(listener: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Forks a trainer for each client. Returns in the trainers alone, each with its request and its
    client's standard files."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    trainers: Dict[socket.socket, int] = {}
    own_pid = os.getpid()
    while True:
        ready = select.select([sys.stdin, listener, woken, *trainers], [], [])[0]
        if sys.stdin in ready:
            for pid in trainers.values():
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        for client in ready:
            if client in trainers:  # which says nothing: it has ended
                os.kill(trainers[client], signal.SIGKILL)
        if woken in ready:
            os.read(woken, 4096)
        end_of(trainers)
        if listener not in ready:
            continue
        client = listener.accept()[0]
        request, files, _, _ = socket.recv_fds(client, REQUEST_BYTES_MAX, 3)
        if not request:
            client.close()
            continue
        pid = os.fork()
        if pid == 0:
            die_with(own_pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(woken)
            os.close(wake)
            for each in (listener, client, *trainers):
                each.close()
            return json.loads(request), files
        for file in files:
            os.close(file)
        tell(client, pid)
        trainers[client] = pid


def become(main: types.ModuleType, request: Dict[str, Any], files: List[int]) -> Any:
    """Makes this process what Python's start would have made it, with `main` for __main__;
    returns the script's code."""
    try:
        os.setpgid(0, request["group"])
    except PermissionError:  # the group has ended, and with it the client
        os._exit(1)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # it is looked up once
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # type: ignore[attr-defined]  # as its import does
    script = request["script"]
    sys.argv = [script, *request["words"]]
    sys.path[:1] = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    sys.path.insert(0, os.path.dirname(script))
    sys.modules["__main__"] = main
    main.__file__ = script
    with open(script, "rb") as source:
        return compile(source.read(), script, "exec")


def leave(main: types.ModuleType) -> None:
    """The end of a script that has returned, but for the destruction of all objects: that copies
    what the fork shares with the server, which takes longer than the rest. Registered before all
    others, it is what atexit calls last."""
    if hasattr(main, "__warm_returned__"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    _main = types.ModuleType("__main__")
    atexit.register(leave, _main)
    with socket.socket(fileno=int(sys.argv[1])) as _listener:
        for _name in sys.argv[2:]:
            importlib.import_module(_name)
        gc.collect()
        gc.freeze()  # or the first collection of each fork would copy all that it looks at
        _code = become(_main, *serve(_listener))
    exec(_code, _main.__dict__)
    _main.__warm_returned__ = True  # type: ignore[attr-defined]
