"""The trainer of test_poison.py: a small model whose state goes bad at step 6.

    poison_trainer.py HOW STEPS

HOW: nan, the gradients of the second layer are NaN from step 6 on; reject, the script rejects step
6 and the steps after it, with _once only step 6; good, nothing is wrong. With _bf16 the parameters
are bfloat16. A buffer holds infinities from the start, as masks do.

Prints "step N finite" or "step N bad", and "from N" at the start. Before the step TRAINER_HOLD_AT
it stands still. An exception that asks it to stop is printed as "stopped".
"""
import os
import sys
import time

import torch

import cairn

BAD = 6


def main():
    how, _, more = sys.argv[1].partition("_")
    steps = int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16))
    model.register_buffer("mask", torch.full((16, 16), float("-inf")).triu(1))
    model.to(torch.bfloat16 if more == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job = cairn.attach(model, optimizer)
    print("from", job.step, flush=True)
    for step in range(job.step + 1, steps + 1):
        while os.environ.get("TRAINER_HOLD_AT") == str(step):
            time.sleep(0.01)
        optimizer.zero_grad()
        batch = torch.randn(8, 16).to(next(model.parameters()).dtype)
        model(batch).square().mean().backward()
        if how == "nan" and step >= BAD:
            model[2].weight.grad.fill_(float("nan"))
        try:
            optimizer.step()
        except cairn.Poisoned:
            print("stopped", flush=True)
            sys.exit(1)
        if how == "reject" and (step == BAD or (step > BAD and more != "once")):
            assert job.reject("loss spike")
        good = all(bool(p.isfinite().all()) for p in model.parameters())
        # what was bad when it was first captured would not count as poisoned; and a busy machine
        # might capture no bad step
        if step in (BAD - 1, BAD):
            assert job.snapshot_now()
        print("step", step, "finite" if good else "bad", flush=True)
        time.sleep(float(os.environ.get("TRAINER_PAUSE_S", "0")))


if __name__ == "__main__":
    main()
