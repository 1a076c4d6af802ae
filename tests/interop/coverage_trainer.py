"""The trainer of test_coverage.py: a small model that cannot be covered whole.

    coverage_trainer.py WHAT SECONDS

WHAT: whole (all is covered), buffer (a buffer of a type that cannot be captured), loose (a
parameter of no module), lbfgs (an optimizer that keeps one state), extra (an extra not a plain
data), other (an optimizer that cairn.attach was not given), between (a parameter is written to
behind the optimizer's back), raise (a hook of ours fails in the middle), dcp (the script saves with
torch.distributed.checkpoint and does not attach). With `plain-` before it the script does not call
cairn.attach.

Trains until the seconds are over, and then prints `step N`, how many updates that were.
"""
import sys
import time

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        if what == "buffer":
            self.register_buffer("phase\x1b[31m", torch.zeros(3, dtype=torch.complex128))

    def forward(self, x):
        return self.norm(self.inner(x))


def main():
    what, seconds = sys.argv[1], float(sys.argv[2])
    attached = not what.startswith("plain-") and what != "dcp"
    what = what.removeprefix("plain-")
    torch.set_num_threads(1)
    model = Model(what)
    loose = nn.Parameter(torch.ones(8))
    parameters = [*model.parameters(), *([loose] if what == "loose" else [])]
    optimizer = torch.optim.LBFGS(parameters) if what == "lbfgs" else torch.optim.AdamW(parameters)
    other = torch.optim.SGD([loose], lr=0.1, momentum=0.9) if what == "other" else None
    if attached:
        import cairn

        job = cairn.attach(model, optimizer, extra={"callback": print} if what == "extra" else None)
        print(f"begins at {job.step}", flush=True)
        if what == "raise":
            from cairn import _layout

            def fail(*_):
                raise OSError("the disk of the universe is full")

            _layout.Layout.prepare = fail
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:

        def closure():
            optimizer.zero_grad()
            loss = (model(torch.ones(2, 8)) * loose).sum()
            if what == "between":
                with torch.no_grad():
                    model.inner.bias.add_(0.001)
            loss.backward()
            return loss

        if what == "lbfgs":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        if other is not None:
            other.step()
        step += 1
        if what == "dcp":
            import torch.distributed.checkpoint as dcp

            import cairn.dcp

            dcp.save(
                {"model": model.state_dict()},
                checkpoint_id=str(step),
                storage_writer=cairn.dcp.Writer(),
            )
        time.sleep(0.01)
    print(f"step {step}", flush=True)


main()
