"""The trainer of test_ending.py: three updates of a small model, and then one of many ends.

    ending_trainer.py WHERE HOW

WHERE: main, or spawn or fork for a child of multiprocessing that is started so. HOW: return; 0, 1
or words for sys.exit with that; raise; group (a process group that is destroyed while an exception
is at work, which is then caught); late, silent, gone (its agent, process $AGENT_PID, is stopped for
two seconds, stopped, or killed after the last update).
"""
import os
import signal
import subprocess
import sys

import torch


def trouble(how):
    agent = int(os.environ["AGENT_PID"])
    os.kill(agent, signal.SIGKILL if how == "gone" else signal.SIGSTOP)
    if how == "late":
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {agent}"])


def end(how):
    if how in ("late", "silent", "gone"):
        trouble(how)
        return
    if how == "raise":
        raise OSError("the disk is full")
    if how != "return":
        sys.exit(int(how) if how.isdigit() else how)


def train(how):
    torch.set_num_threads(1)
    if how == "group":
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    if how == "group":
        try:
            raise OSError("the disk is full")
        except OSError:
            torch.distributed.destroy_process_group()
            from cairn import _current

            print("last", _current.job._last_step, flush=True)
        how = "1"
    end(how)


def spawned(_index, how):
    train(how)


def main():
    where, how = sys.argv[1:]
    if where == "main":
        train(how)
    elif where == "spawn":
        torch.multiprocessing.spawn(spawned, (how,), nprocs=1)
    else:
        child = torch.multiprocessing.get_context("fork").Process(target=train, args=(how,))
        child.start()
        child.join()
        sys.exit(child.exitcode)


if __name__ == "__main__":
    main()
