"""The ranks of a test's job as forks of one process that has imported everything: importing torch
takes longer than these jobs do.

Who starts the job sets RANK_OUTPUTS to the files for the ranks' standard outputs, joined by ':',
and WORLD_SIZE and what else all ranks share; the trainer calls become_a_rank() after its imports,
before it asks for its rank. Jobs whose ranks must be started as torchrun starts them, each on its
own, leave RANK_OUTPUTS out.
"""
import importlib
import os
import sys


def become_a_rank():
    """Returns in each rank, with RANK and LOCAL_RANK set; the process that forked them ends when
    they have, with 0 as a shell's `wait`."""
    outputs = os.environ.pop("RANK_OUTPUTS", None)
    if outputs is None:
        return
    # the first optimizer of each rank would, and that takes as long as torch itself
    importlib.import_module("torch._dynamo")
    ranks = []
    for rank, output in enumerate(outputs.split(":")):
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            with open(output, "wb") as out:
                os.dup2(out.fileno(), sys.stdout.fileno())
            return
        ranks.append(child)
    for child in ranks:
        os.waitpid(child, 0)
    os._exit(0)  # it trains nothing, so it has nothing to say at its end


def run_rank(module, rank, ranks, port, output, *words):
    """main() of a trainer that a fork server has imported, as one rank of a job; what it prints
    goes to the file `output`."""
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    sys.argv = [module, *words]
    importlib.import_module(module).main()
