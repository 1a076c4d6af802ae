"""What an update waits for while a snapshot is being captured: a capture that copies nothing before
a fence asks for it.

So a tensor that is overwritten before its fence is torn for certain, and what a fence waits for can
be counted. The hooks, the job and torch are real; agent and library are replaced by that capture.
"""

import ctypes
import pathlib
import re
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python"))

from cairn import (  # noqa: E402
    _coverage,
    _current,
    _extras,
    _fence,
    _job,
    _known,
    _lib,
    _modules,
    _ranks,
    _state,
    _torch,
    _watch,
)
from test_torch import ROOT, Run, harness, newest, under  # noqa: E402

GATED = ROOT / "build" / "plain" / "libcairn_gated.so"
TRAINER = str(ROOT / "tests" / "interop" / "gated_trainer.py")
STEPS = 4


class LazyCapture:
    """The client of a job; begins a copy of everything registered, and copies what a fence asks for
    when it does."""

    def __init__(self):
        self.pieces, self.truth, self.copy = [], None, []
        self.running = False
        self.always_captured = False  # as fast as a copy can be
        self.refuses = False  # the agent grants nothing
        self.good, self.bad = [], []  # steps of the snapshots that were confirmed, and refused
        self.fences = []  # (piece, pieces that had changed by then) of each fence that waited
        self.registered = []

    @staticmethod
    def size(piece):
        count = 1
        for extent in piece.extent:
            count *= extent
        width = {"BOOL": 1, "U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4, "I64": 8, "F64": 8}
        return count * width[{value: name for name, value in _lib.DTYPES.items()}[piece.dtype]]

    def read(self, piece):
        return ctypes.string_at(piece.address, self.size(piece))

    def register(self, pieces):
        self.pieces, self.running = list(pieces), False
        self.registered.append([piece.name for piece in pieces])

    def set_stream(self, device, stream):
        pass

    def begin(self, step, last=False):
        assert not self.running, "a begin before the end of the snapshot before"
        self.step, self.running, self.result = step, True, _lib.OK
        self.truth, self.copy = [self.read(piece) for piece in self.pieces], []
        if self.always_captured:
            self.copy = list(self.truth)
        return True

    def captured(self):
        return (
            len(self.copy)
            if self.running and self.result == _lib.OK and len(self.copy) < len(self.pieces)
            else _lib.FENCE_ALL
        )

    def catch_up(self):
        """The copy comes to its end by itself."""
        while len(self.copy) < len(self.pieces):
            self.copy.append(self.read(self.pieces[len(self.copy)]))

    def fence(self, index=_lib.FENCE_ALL):
        if not self.running:
            return _lib.OK
        if self.refuses:
            self.result = _lib.AGAIN
        if self.result == _lib.OK:
            upto = min(index + 1, len(self.pieces))
            if len(self.copy) < upto:
                changed = sum(
                    self.read(piece) != was for piece, was in zip(self.pieces, self.truth)
                )
                self.fences.append((index, changed))
            while len(self.copy) < upto:
                self.copy.append(self.read(self.pieces[len(self.copy)]))
        result = self.result
        if index == _lib.FENCE_ALL:
            self.running = False
        return result

    def confirm(self, good):
        (self.good if good else self.bad).append(self.step)
        if good and self.result == _lib.OK:
            for piece, was, copied in zip(self.pieces, self.truth, self.copy):
                assert was == copied, f"{piece.name} of step {self.step} is torn"
        if not good:
            self.result = _lib.INVAL
        return True

    def stop_wanted(self):
        return False

    def await_commit(self, timeout_ms):
        return _lib.OK

    def stats(self):
        return {
            "attached": 0,
            "snapshots_captured": 0,
            "snapshots_skipped": 0,
            "snapshots_failed": 0,
        }

    def close(self):
        pass


@pytest.fixture
def job(monkeypatch):
    """A job of this process with such a capture as its client."""
    monkeypatch.setenv("CAIRN_AGENT", "none")
    monkeypatch.setattr(_job, "WATCHED_BYTES_MIN", 0)
    monkeypatch.setattr(_current, "job", None)
    _torch.install()
    job = _job.start()
    job.client, job.place = LazyCapture(), _ranks.Place(0, 1, 1)
    job.said = []
    monkeypatch.setattr(job, "say", lambda text, once=True: job.said.append(text))
    yield job
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not job._ended, job.said
    job._ended = True


def model_of(layers=5):
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(layers)))


def train(model, optimizers, steps=STEPS, closure=False, between=lambda step: None):
    for step in range(steps):

        def forward_and_backward():
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = model(torch.full((2, 6), 0.1 * (step + 1))).square().sum()
            loss.backward()
            return loss

        if closure:
            for optimizer in optimizers:
                optimizer.step(forward_and_backward)
        else:
            forward_and_backward()
            between(step)
            for optimizer in optimizers:
                optimizer.step()
    model(torch.ones(2, 6))  # what the last update made is begun, and open
    job = _current.job
    job._finish()
    return job.client


def partial(capture):
    """Fences of single pieces that waited while others had been overwritten already."""
    return [
        changed
        for index, changed in capture.fences
        if index not in (0, _lib.FENCE_ALL) and changed > 0
    ]


ALL_OPTIMIZERS = [
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.Adagrad, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adafactor, {}),
]


@pytest.mark.parametrize("how", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("kind, options", ALL_OPTIMIZERS)
def test_never_torn(job, kind, options, how):
    """Every optimizer of torch, however it updates: what is confirmed holds the bytes of the
    beginning; the wait is in parts."""
    if how == "fused" and (
        kind not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)
    ):
        pytest.skip("it has no fused kernel")
    model = model_of()
    optimizer = kind(
        model.parameters(), **options, **({how: True} if how != "loop" else {"foreach": False})
    )
    capture = train(model, [optimizer])
    assert capture.good == [1, 2, 3, 4] and capture.bad == [], (capture.good, capture.bad, job.said)
    if how == "loop":
        assert len(partial(capture)) >= 3 * 4, capture.fences


def test_torn_without_fences(job, monkeypatch):
    """The test itself: a fence that does not wait is found out."""
    ended = []
    monkeypatch.setattr(_fence.Fence, "_await", lambda self, slices: None)
    monkeypatch.setattr(job, "end", ended.append)  # the hooks let no error reach the training
    model = model_of()
    try:
        train(model, [torch.optim.AdamW(model.parameters(), foreach=False)])
    except AssertionError as error:  # of what follows outside the hooks
        ended.append(str(error))
    assert "is torn" in ended[0], ended


def test_unseen_writes_are_refused(job, monkeypatch):
    """An update that the watch does not see leaves a snapshot that is refused, by the version
    counters."""
    monkeypatch.setattr(_watch, "_writes_of", lambda function: ())
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    optimizer.register_step_post_hook(lambda *_: job.client.catch_up())
    monkeypatch.setattr(_watch, "writes_are_known", lambda optimizer: True)  # for all its hook
    capture = train(model, [optimizer])
    assert capture.good == [4] and capture.bad == [1, 2, 3], (capture.good, capture.bad)
    assert any("something other than the optimizer changed" in line for line in job.said)


def test_first_tensors_are_updated_while_the_last_are_captured(job):
    """By the fence of the last parameter all others have been updated, and nothing is waited for
    twice."""
    model = model_of(8)
    capture = train(model, [torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)], steps=2)
    one_by_one = [
        (index, changed) for index, changed in capture.fences if 0 < index < _lib.FENCE_ALL
    ]
    assert one_by_one == [(1 + i, i) for i in range(16)], capture.fences
    assert capture.registered[-1][1:] == [
        f"{i}.{name}" for i in range(8) for name in ("weight", "bias")
    ]


def test_nothing_is_added_when_all_is_captured(job, monkeypatch):
    """The usual case: one fence of everything at the update, and no watch of its operators."""
    monkeypatch.setattr(_watch, "watch", lambda fence: pytest.fail("watched"))
    job.client.always_captured = True
    model = model_of()
    capture = train(model, [torch.optim.AdamW(model.parameters())])
    assert capture.good == [1, 2, 3, 4] and capture.fences == []


def test_little_left_is_waited_for(job, monkeypatch):
    monkeypatch.setattr(_job, "WATCHED_BYTES_MIN", 1 << 20)
    monkeypatch.setattr(_watch, "watch", lambda fence: pytest.fail("watched"))
    model = model_of()
    capture = train(model, [torch.optim.AdamW(model.parameters())])
    assert capture.good == [1, 2, 3, 4] and {index for index, _ in capture.fences} == {
        0,
        _lib.FENCE_ALL,
    }


def test_closure(job):
    """The fences begin when the closure has returned, and not before."""
    model = model_of()
    capture = train(model, [torch.optim.AdamW(model.parameters(), foreach=False)], closure=True)
    assert capture.good == [1, 2, 3, 4] and partial(capture)


def test_optimizer_in_backward(job):
    """One optimizer per parameter, stepped by hooks of backward: each waits for its own tensors, in
    the order of backward."""
    model = model_of()
    optimizers = {p: torch.optim.AdamW([p], foreach=False) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for number in range(STEPS):
        model(torch.full((2, 6), 0.1 * (number + 1))).square().sum().backward()
    model(torch.ones(2, 6))
    job._finish()
    capture = job.client
    # the first round shows which optimizers there are
    assert capture.good == [2, 3, 4], (capture.good, capture.bad, job.said)
    names = [name for name in capture.registered[-1] if "." in name and name[0].isdigit()]
    assert names[0].startswith("4.") and names[-1].startswith("0."), names
    waited = [changed for index, changed in capture.fences if 0 < index < _lib.FENCE_ALL]
    # Ten parameters: at each one's fence all earlier parameters have been updated, with their three
    # moments.
    assert waited == [4 * i for i in range(10)] * 2, capture.fences


def test_two_optimizers_out_of_order(job):
    """The one that was made last steps first, and is captured first."""
    model = model_of(4)
    first, second = (
        torch.optim.SGD(list(model[:2].parameters()), lr=0.1, foreach=False),
        torch.optim.SGD(list(model[2:].parameters()), lr=0.1, foreach=False),
    )
    capture = train(model, [second, first])
    assert capture.good == [2, 3, 4] and capture.bad == []
    assert [name[0] for name in capture.registered[-1][1:]] == [
        "2",
        "2",
        "3",
        "3",
        "0",
        "0",
        "1",
        "1",
    ]
    assert [changed for index, changed in capture.fences if 0 < index < _lib.FENCE_ALL] == list(
        range(8)
    ) * 2


def test_order_is_learned(job):
    """foreach goes through all tensors of a kind at once: seen in the first snapshot that waits,
    and captured so from then on."""
    model = model_of()
    capture = train(model, [torch.optim.AdamW(model.parameters(), foreach=True)], steps=6)
    assert capture.good == [1, 2, 3, 4, 5, 6]
    kinds = [name.split(".")[0] for name in capture.registered[-1][1:]]
    order = [kind for i, kind in enumerate(kinds) if i % 10 == 0]
    assert order[0] == "step" and len(order) == 4, capture.registered[-1]
    assert all(
        len(set(kinds[i : i + 10])) == 1 for i in range(0, 40, 10) if not kinds[i].isdigit()
    ), kinds
    assert len(capture.registered) == 2


def test_groups(job):
    """Groups that are updated in another order than that of the model."""
    model = model_of(3)
    weights, biases = [layer.weight for layer in model], [layer.bias for layer in model]
    optimizer = torch.optim.SGD(
        [{"params": biases}, {"params": weights, "lr": 0.01}], lr=0.1, foreach=False
    )
    capture = train(model, [optimizer], steps=2)
    assert capture.registered[-1][1:] == [
        "0.bias",
        "1.bias",
        "2.bias",
        "0.weight",
        "1.weight",
        "2.weight",
    ]
    assert [changed for index, changed in capture.fences if 0 < index < _lib.FENCE_ALL] == list(
        range(6)
    )


def fence_of(job, parameters):
    """(capture, what a write waits for and what is found changed)"""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    layout = _state.collect(
        {}, [_known.Known(lambda: optimizer, 0)], job.place, _coverage.Problems(), set()
    )
    layout.grow_blob(64)
    capture = LazyCapture()
    capture.register(layout.capture_pieces())
    fence = _fence.Fence(capture, layout)

    def waited_for(write):
        layout.prepare()
        fence.begin()
        capture.begin(1)
        capture.fences = []
        with torch.no_grad():
            _watch.watch(fence)
            try:
                write()
            finally:
                _watch.unwatch()
        code, changed = fence.end()
        assert code == _lib.OK and all(
            was == copied for was, copied in zip(capture.truth, capture.copy)
        )
        assert changed == [], [entry.name for entry in changed]
        return [index for index, _ in capture.fences if index != _lib.FENCE_ALL]

    return waited_for


def test_views(job):
    """Writers that take other views of the parameters' memory, or of parts of several."""
    block = torch.zeros(60).numpy()
    parameters = [
        torch.nn.Parameter(torch.from_numpy(block[20 * i : 20 * i + 20])) for i in range(3)
    ]
    whole = torch.from_numpy(block)
    waited_for = fence_of(job, parameters)
    assert waited_for(lambda: whole[5:15].add_(1)) == [1]
    assert waited_for(lambda: whole.view(3, 20)[1].mul_(2)) == [2]
    assert waited_for(lambda: whole[15:45].add_(1)) == [3]
    assert waited_for(lambda: whole[::25].add_(1)) == [3]
    assert waited_for(
        lambda: torch._foreach_add_([parameters[1].data, parameters[0].data], 1.0)
    ) == [2]
    assert waited_for(lambda: torch.add(parameters[0], 1, out=parameters[0].data)) == [1]
    assert waited_for(lambda: parameters[1].data.view(4, 5).t()[2:4].fill_(3)) == [2]
    assert waited_for(lambda: torch.nn.init.uniform_(parameters[0])) == [1]
    assert waited_for(lambda: parameters[0].data.copy_(whole[40:])) == [1]
    assert waited_for(lambda: whole.clone().add_(1)) == []
    assert waited_for(lambda: whole[20:20].add_(1)) == []
    # nobody knows where: everything
    assert waited_for(lambda: torch.eye(3).to_sparse().mul_(2)) == [3]


def test_one_block(job):
    """Parameters that are views of one tensor have one version counter: a write to one is a write
    to all."""
    flat = torch.zeros(60)
    parameters = [torch.nn.Parameter(flat[20 * i : 20 * i + 20]) for i in range(3)] + [
        torch.nn.Parameter(torch.ones(7))
    ]
    waited_for = fence_of(job, parameters)
    assert waited_for(lambda: flat[5:15].add_(1)) == [3]
    assert waited_for(lambda: parameters[3].data.add_(1)) == [4]


def test_changed_before_its_fence(job):
    """Changed behind the optimizer's back while the copy was under way: refused, although the
    update was fenced."""
    model = model_of()

    def between(step):
        if step == 2:
            with torch.no_grad():
                model[3].weight.add_(1)

    capture = train(model, [torch.optim.AdamW(model.parameters(), foreach=False)], between=between)
    assert capture.good == [1, 3, 4] and capture.bad == [2]
    assert any("changed 3.weight" in line for line in job.said)


def test_memory_that_is_replaced(job):
    """A parameter that gets other memory while its own is being copied: refused, and the old memory
    is there until then."""
    model = model_of()
    held = []

    def between(step):
        if step == 2:
            model[3].weight.data = torch.zeros(6, 6)
            held.extend(torch.full((6, 6), 7.0) for _ in range(1000))  # in what was freed
            assert (
                job.client.read(next(p for p in job.client.pieces if p.name == "3.weight"))
                in job.client.truth
            )

    capture = train(model, [torch.optim.AdamW(model.parameters(), foreach=False)], between=between)
    assert capture.good == [1, 3, 4] and capture.bad == [2]


def test_a_step_that_raises(job):
    """The watch ends with the step, and what was not overwritten by then is captured later."""
    model = model_of()
    groups = [{"params": list(model[:3].parameters())}, {"params": list(model[3:].parameters())}]
    optimizer = torch.optim.SGD(groups, lr=0.1, foreach=False)
    train(model, [optimizer], steps=2)
    model(torch.ones(2, 6)).sum().backward()
    job._pending = True
    model(torch.ones(2, 6))
    optimizer.param_groups[1]["lr"] = "much"
    with pytest.raises(TypeError) as raised:
        optimizer.step()
    assert not any("python/cairn/" in str(frame.path) for frame in raised.traceback)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert len(job.client.copy) == 1 + 6
    optimizer.param_groups[1]["lr"] = 0.1
    optimizer.step()
    capture = train(model, [optimizer], steps=2)
    assert capture.bad == [] and len(capture.good) == 6, (capture.good, job.said)


class Custom(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(0.1 * parameter.grad)


@pytest.mark.parametrize("what", ["custom", "subclass", "hooked", "compiled", "other mode"])
def test_in_doubt_everything_is_waited_for(job, what):
    model = model_of()
    if what == "custom":
        optimizer = Custom(model.parameters())
    elif what == "subclass":
        optimizer = type("Mine", (torch.optim.SGD,), {})(model.parameters(), lr=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    if what == "hooked":
        optimizer.register_step_pre_hook(lambda *_: None)
    if what == "compiled":
        step = torch.compile(optimizer.step, backend="eager")
        capture = train(
            model,
            [type("Stepper", (), {"zero_grad": optimizer.zero_grad, "step": staticmethod(step)})],
        )
    elif what == "other mode":

        class Passing(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
                return function(*args, **(kwargs or {}))

        with Passing():
            capture = train(model, [optimizer])
        assert capture.good == [1, 2, 3, 4]  # it is fenced under another mode too
        return
    else:
        capture = train(model, [optimizer])
    assert capture.good == [1, 2, 3, 4], (capture.good, capture.bad, job.said)
    assert {index for index, _ in capture.fences} <= {0, _lib.FENCE_ALL}, capture.fences


class Queued(torch.nn.Sequential):
    """A large buffer that each forward writes to."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.register_buffer("queue", torch.zeros(_state.STAGED_BYTES_MAX // 4 + 1))

    def forward(self, x):
        self.queue[0] += 1
        return super().forward(x)


@pytest.mark.parametrize(
    "rank, replicates, refused", [(0, False, [1]), (1, False, [1]), (0, True, [1]), (1, True, [])]
)
def test_a_large_buffer_that_forward_writes_to(job, monkeypatch, rank, replicates, refused):
    """It is captured from a copy from the second snapshot on, on every rank; of one that another
    rank captures nothing is refused."""
    job.place, published = _ranks.Place(rank, 2, 2), {}
    monkeypatch.setattr(
        _ranks, "publish", lambda key, value, here: published.__setitem__(key, value)
    )
    monkeypatch.setattr(_ranks, "gather", lambda key, here: [published[key]] * 2)
    monkeypatch.setattr(_modules, "replicates", lambda module: replicates)
    job.client.always_captured = True
    model = Queued(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    capture = train(model, [torch.optim.AdamW(model.parameters())])
    assert capture.bad == refused and capture.good == [
        step for step in (1, 2, 3, 4) if step not in refused
    ], job.said
    names = [name for name in capture.registered[-1] if "queue" in name]
    assert names == (["queue"] if rank == 0 else [] if replicates else ["rank1/queue"])


def test_not_granted_is_given_up(job):
    """A snapshot for which there was no memory by the update is given up rather than waited for, as
    ever."""
    job.client.refuses = True
    model = model_of()
    capture = train(model, [torch.optim.AdamW(model.parameters(), foreach=False)])
    assert capture.good == [] and capture.fences == []


def test_frozen_weights_are_not_waited_for(job):
    """What nobody overwrites is captured behind further updates; a snapshot that would interrupt it
    is left out."""
    model = model_of(4)
    for layer in model[:3]:
        layer.requires_grad_(False)
    capture = train(model, [torch.optim.SGD(model[3].parameters(), lr=0.1, foreach=False)], steps=5)
    assert capture.registered[-1][1:3] == ["3.weight", "3.bias"]
    assert [index for index, _ in capture.fences if index != _lib.FENCE_ALL] == [0, 1, 2]
    assert capture.good == [1], capture.good


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("how", ["loop", "foreach", "fused"])
def test_fully_sharded(job, mesh, how):
    """DTensors: their local parts are fenced."""
    from torch.distributed.fsdp import fully_shard

    model = model_of()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(
        model.parameters(), **({how: True} if how != "loop" else {"foreach": False})
    )
    capture = train(model, [optimizer])
    assert capture.good == [1, 2, 3, 4] and capture.bad == [], (capture.good, capture.bad, job.said)
    if how == "loop":
        assert len(partial(capture)) >= 10


def test_the_same_bits(job):
    """A watched update computes what an unwatched one does."""
    results = []
    for captured in (True, False):
        job.client.always_captured = captured
        for how in ("foreach", "fused"):
            model = model_of()
            job.attach({"": model}, [], _extras.Extras(None, None, None))
            optimizer = torch.optim.AdamW(model.parameters(), **{how: True})
            job.models.add_optimizer(optimizer)
            train(model, [optimizer])
            results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])


@pytest.mark.skipif(not GATED.exists(), reason=f"{GATED} is not built")
def test_half_captured(tmp_path):
    """With the real library and agent: the first layers are updated while the last are not
    captured, and it comes back whole."""
    with harness.Cluster(nodes=1, parity=0, state="64MiB") as cluster:
        cluster.start()
        run = Run(
            tmp_path, ["half"], 1, under(cluster), env={"CAIRN_LIBRARY": str(GATED)}, script=TRAINER
        )
        harness.wait_for(
            "the update", lambda: "held" in run.text() or run.process.poll() is not None
        )
        said = run.text() + run.errors()
        step = int(re.search(r"^state (\d+)", run.text(), re.M).group(1))
        # Two layers and a half were captured: two are updated, of the third the parameter at most,
        # of the rest nothing.
        assert re.search(r"^updated 33[01]000 waits$", run.text(), re.M), said
        assert "updated 333333 in the end" in run.text(), said
        harness.wait_for("the snapshot is committed", lambda: newest(cluster) >= step, 20)
        run.kill()
        resumed = Run(tmp_path, ["show"], 1, under(cluster, "--resume"), script=TRAINER)
        assert resumed.wait() == 0, resumed.errors()
        state = re.findall(r"^state .*$", run.text(), re.M)
        assert re.findall(r"^state .*$", resumed.text(), re.M) == state, said + resumed.errors()
