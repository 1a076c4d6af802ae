"""The trainer of test_torch_pipeline.py: a small model in pipelines of torch.distributed.pipelining
over gloo, whose layers may move between stages.

    pipeline_trainer.py '{"steps": 20, ...}' [STAGES LAYERS]

STAGES, LAYERS: of each replica, as `cairn run --relaunch` fills in {pp} and {stage_layers}.

Options:
    layers, stages, micro    layers as cairn.elastic takes them; micro-batches of all replicas
    schedule, strict         "1f1b" or "gpipe"; strict: 1F1B also with fewer micro-batches
    dropout, rng, dtype, width
    passes                   of the schedule per update
    layer_ms, slow           emulated device: time per layer; [rank, factor, from, to]
    after, after_shares      steps from the last move of layers, or change of shares, to the end
    starts                   folder: each start of the job prints into files of its own there
    again                    steps of the second start
    moves                    {step: [shares, layers]}: offered in the agents' place; the agents do
                             all the rest
    bad                      {step: [rank, fault]}: what `build` does in the move of that step
    take                     layers that stay are taken by reference
    dcp                      folder: loads what torch.distributed.checkpoint has saved there, and
                             saves at the end
    inf                      trains with a gradient scaler; in this step a gradient of layer 3 of
                             replica 0 overflows
    alone                    each stage unscales by itself
    fused                    an optimizer whose counts are tensors on the device, and whose kernel
                             skips the update of an overflow
    death                    [step, point, rank, pid]: in the move of that step the rank kills this
                             process; 0: itself. Points: enter, fill (before its own), vote, adopt

Prints `sample STEP I LOSS` on last stages, `step STEP [SHARES, LAYERS]`, `scale STEP SCALE`,
`asked STEP MS` (for its share), `took STEP MS`, `ended STEP SECONDS`, after each move `stood STEP
MS` and `held DESCRIPTORS GROUPS KIB THREADS`, and at the end `state NAME DIGEST` of parameters and
moments.
"""
import gc
import hashlib
import json
import os
import signal
import sys
import threading
import time

import cairn
import torch
import torch.distributed as dist
from cairn import _lib
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

OPTIONS = {"layers": 8, "stages": 2, "micro": 8, "schedule": "1f1b", "dropout": 0, "moves": {}}
OPTIONS.update({"death": [-1, "", -1, 0], "dcp": ""})
OPTIONS.update({"bad": {}, "rng": None, "passes": 1, "layer_ms": 0, "slow": [-1, 1, 0, 0]})
OPTIONS.update(
    {
        "take": False,
        "dtype": "float32",
        "width": 16,
        "timeout_s": 10,
        "strict": False,
        "after": 0,
        "after_shares": 0,
        "starts": "",
        "again": 0,
        "max_norm": 0.5,
        "inf": None,
        "alone": False,
        "fused": None,
    }
)
OPTIONS.update(json.loads(sys.argv[1]))
START = int(os.environ.get("CAIRN_RELAUNCH", "0"))
if OPTIONS["starts"]:
    name = os.path.join(OPTIONS["starts"], f"start{START}-{os.environ['RANK']}.out")
    sys.stdout = open(name, "w", encoding="utf-8")
if len(sys.argv) > 2:
    OPTIONS["stages"], split = int(sys.argv[2]), [int(each) for each in sys.argv[3].split(",")]
    OPTIONS["layers"] = [split] * (int(os.environ["WORLD_SIZE"]) // OPTIONS["stages"])
ROWS, WIDTH, DTYPE = 4, OPTIONS["width"], getattr(torch, OPTIONS["dtype"])
COUNT = OPTIONS["layers"] if isinstance(OPTIONS["layers"], int) else sum(OPTIONS["layers"][0])
NOW = {"step": 0}


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        torch.manual_seed(number)
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(OPTIONS["dropout"])
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, inputs):
        rank, factor, first, last = OPTIONS["slow"]
        is_slow = dist.get_rank() == rank and first <= NOW["step"] <= last
        time.sleep(OPTIONS["layer_ms"] / 1000 * (factor if is_slow else 1))
        return inputs + self.dropout(torch.tanh(self.linear(inputs)))


class Stage(torch.nn.Module):
    def __init__(self, placement, old):
        super().__init__()
        self.layers = torch.nn.ModuleDict()
        for number in placement.layers:
            taken = old.take(f"layers.{number}") if OPTIONS["take"] else None
            self.layers[str(number)] = taken or Layer(number)
        self.head = torch.nn.Linear(WIDTH, 1) if placement.is_last else None
        self.to(DTYPE)

    def forward(self, inputs):
        for layer in self.layers.values():
            inputs = layer(inputs)
        return inputs if self.head is None else self.head(inputs)


def build(placement, old):
    rank, what = OPTIONS["bad"].get(str(NOW["step"]), (-1, ""))
    module = Stage(placement, old)
    if rank == dist.get_rank() and threading.current_thread() is not threading.main_thread():
        if what == "raises":
            raise ArithmeticError("no such layer")
        if what == "hangs":
            time.sleep(3600)
        if what == "names":
            module.layers.add_module("other", module.layers.pop(str(placement.layers[0])))
    optimizer = torch.optim.AdamW(module.parameters(), 0.01, fused=OPTIONS["fused"])
    kind = Schedule1F1B if OPTIONS["schedule"] == "1f1b" else ScheduleGPipe

    def schedule(count):
        stage = PipelineStage(
            module, placement.stage, placement.stages, torch.device("cpu"), group=placement.group
        )
        enough = OPTIONS["strict"] or count >= placement.stages
        return (kind if enough else ScheduleGPipe)(stage, count, loss_fn=loss_of, scale_grads=False)

    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    layers = dict(zip(placement.layers, module.layers.values()))
    return cairn.Parts(module, optimizer, schedule, scheduler, layers)


def loss_of(output, target):
    return scaler.scale((output - target).square().mean() / OPTIONS["passes"])


def batch(step, i):
    generator = torch.Generator().manual_seed(step * 1000 + i)
    return torch.randn(ROWS, WIDTH, dtype=DTYPE, generator=generator)


def die_at(point):
    *where, pid = OPTIONS["death"]
    if where == [NOW["step"], point, dist.get_rank()]:
        print("kills", pid, flush=True)
        os.kill(pid or os.getpid(), signal.SIGKILL)


def offer_by_script():
    """The ranks are offered what the options say; the agents do the rest."""
    entered, filled = [], []
    fill = _lib.Client.fill

    def vote(_client, number, _shares, _layers):
        if entered:
            die_at("vote")
        offered = NOW["step"] + 1 if str(NOW["step"]) in OPTIONS["moves"] else number
        return 1 + (offered if not entered or filled else number)

    def take(_client, agreed, _replicas, _stages):
        if entered:
            number, shares, layers = entered.pop()
            change = _lib.TAKEN if agreed == 1 + number else _lib.ABANDONED
            if change == _lib.TAKEN:
                die_at("adopt")
            filled.clear()
            return change, _lib.Placed(number, shares, layers)
        if agreed == 0 or str(NOW["step"]) not in OPTIONS["moves"]:
            return _lib.SAME, _lib.Placed(0, [], [])
        shares, layers = OPTIONS["moves"][str(NOW["step"])]
        placed = _lib.Placed(agreed - 1, shares, layers)
        if layers == [list(row) for row in job.elastic.split]:
            return _lib.TAKEN, placed
        entered.append(placed)
        die_at("enter")
        return _lib.ENTER, placed

    def note(*arguments):
        die_at("fill")
        restored = fill(*arguments)
        filled.append(True)
        print("filled", restored.bytes, restored.remote_bytes, flush=True)
        return restored

    _lib.Client.vote_layers, _lib.Client.take_placement, _lib.Client.fill = vote, take, note


def digest(tensor):
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


def dcp_state():
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = get_state_dict(job.parts.module, job.parts.optimizer, options=options)
    return {"model": model, "optimizer": optimizer, "step": torch.tensor(OPTIONS["steps"])}


def dcp_load():
    """The step from which the job goes on."""
    if not os.path.exists(os.path.join(OPTIONS["dcp"], ".metadata")):
        return 0
    state = dcp_state()
    checkpoint.load(state, checkpoint_id=OPTIONS["dcp"])
    set_state_dict(
        job.parts.module,
        job.parts.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(flatten_optimizer_state_dict=True),
    )
    return int(state["step"])


def say_what_is_held():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        kib = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    fds, groups = len(os.listdir("/proc/self/fd")), dist.distributed_c10d._world.pg_map
    print("held", fds, len(groups), kib, threading.active_count(), flush=True)


torch.set_num_threads(1)
dist.init_process_group("gloo")
scaler = torch.amp.GradScaler(
    "cpu", 2.0**12, growth_interval=4, enabled=OPTIONS["inf"] is not None
)
if OPTIONS["moves"]:
    offer_by_script()
job = cairn.elastic(
    build,
    layers=OPTIONS["layers"],
    stages=OPTIONS["stages"],
    microbatches=OPTIONS["micro"],
    rng=OPTIONS["rng"],
    build_timeout_s=OPTIONS["timeout_s"],
    extra={"scaler": scaler},
)
if OPTIONS["rng"] is None and job.step == 0:
    torch.manual_seed(100 + dist.get_rank())
moves, counts, last = 0, None, OPTIONS["steps"]
if START:
    last = job.step + OPTIONS["again"]
if OPTIONS["dcp"]:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )
for step in range(dcp_load() if OPTIONS["dcp"] else job.step, OPTIONS["steps"]):
    if step >= last:
        break
    NOW["step"] = step
    begin_s = time.monotonic()
    share = job.share()
    stood_ms = (time.monotonic() - begin_s) * 1000
    print("asked", step, round(stood_ms, 3), flush=True)
    if OPTIONS["after_shares"] and share.counts != (counts or share.counts):
        last = step + 1 + OPTIONS["after_shares"]
    counts = share.counts
    for number in range(OPTIONS["passes"]):
        inputs = torch.cat([batch(step, i + 100 * number) for i in share])
        losses = []
        if not job.placement.is_last:
            job.schedule.step(inputs)
        else:
            job.schedule.step(target=inputs[:, :1], losses=losses)
        for i, loss in zip(share, losses):
            print("sample", step + number / 2, i, loss.item().hex(), flush=True)
    if step == OPTIONS["inf"] and job.placement.replica == 0 and 3 in job.placement.layers:
        job.parts.module.layers["3"].linear.weight.grad[0, 0] = float("inf")
    norm = job.reduce_gradients(OPTIONS["max_norm"], None if OPTIONS["alone"] else scaler)
    if OPTIONS["alone"]:
        scaler.scale(torch.ones(1))
    else:
        print("norm", step, norm.item().hex(), flush=True)
    scaler.step(job.parts.optimizer)
    scaler.update()
    job.parts.optimizer.zero_grad()
    job.parts.scheduler.step()
    print("scale", step, scaler.get_scale(), flush=True)
    print("step", step, json.dumps([share.counts, job.elastic.split]), flush=True)
    print("took", step, round((time.monotonic() - begin_s) * 1000, 1), flush=True)
    print("ended", step, time.time(), flush=True)
    if job.elastic.moves != moves:
        moves = job.elastic.moves
        last = step + 1 + OPTIONS["after"] if OPTIONS["after"] else last
        print("stood", step, round(stood_ms, 1), flush=True)
        say_what_is_held()
if OPTIONS["dcp"]:
    checkpoint.save(dcp_state(), checkpoint_id=OPTIONS["dcp"])
for name, parameter in job.parts.module.named_parameters():
    print("state", name, digest(parameter), flush=True)
    for key, value in sorted(job.parts.optimizer.state[parameter].items()):
        print("state", f"{key}.{name}", digest(value), flush=True)
dist.destroy_process_group()
