"""The ranks of a test's job as forks of one process that has imported everything: importing torch takes longer than these jobs do.

Who starts the job sets RANK_OUTPUTS to the files for the ranks' standard outputs, joined by ':', and WORLD_SIZE and what else all
ranks share; the trainer calls become_a_rank() after its imports, before it asks for its rank. Jobs whose ranks are to be started
as torchrun starts them, each on its own, leave RANK_OUTPUTS out.
"""
import os
import sys


def become_a_rank():
    """Returns in each rank, with RANK and LOCAL_RANK set; the process that forked them ends when they have, with 0 as a shell's
    `wait`."""
    outputs = os.environ.pop("RANK_OUTPUTS", None)
    if outputs is None:
        return
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
