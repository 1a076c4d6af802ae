"""What optimizers and scripts do that others do not: state beside the parameters, models that take
turns, copies of parameters that the script updates itself. It comes back whole, or the log says
it does not; and no healthy job is hurt."""
import re
import sys

import pytest
import test_torch_fence
from test_torch import ROOT, Run, built, cluster, harness, newest, under  # noqa: F401: fixtures

torch = pytest.importorskip("torch", reason="torch is not installed here")

from cairn import _known, _tensors, _torch  # noqa: E402

job = test_torch_fence.job  # with a capture that copies nothing before a fence asks for it
SCRIPT = str(ROOT / "tests" / "interop" / "odd_trainer.py")
STEPS = 8  # of a run after the one that was killed
ENDLESS = 10**6


def killed(cluster, tmp_path, kind):  # noqa: F811
    """(losses of a run that is not killed, to the end of one that goes on after it, the one that
    was killed and has a snapshot)"""
    run = Run(tmp_path, [kind, ENDLESS], 1, under(cluster), script=SCRIPT)
    harness.wait_for("a snapshot", lambda: newest(cluster) >= 2 or run.process.poll() is not None)
    assert run.process.poll() is None, run.errors()
    run.kill()
    whole = Run(
        tmp_path, [kind, max(run.steps()) + 2 + STEPS], env={"TRAINER_PAUSE_S": "0"}, script=SCRIPT
    )
    assert whole.wait() == 0, whole.errors()
    losses = whole.steps()
    assert run.steps() == {step: losses[step] for step in run.steps()}, run.errors()
    assert "_dynamo" not in run.errors(), run.errors()
    return losses, run


@pytest.mark.parametrize("kind", ["group", "beside", "two", "compiled", "function", "late"])
def test_all_of_it_comes_back(cluster, tmp_path, kind):  # noqa: F811
    """Unchanged scripts with counters in an optimizer's groups or beside its parameters; two
    models, one updated before the other is called; a model that is compiled in place as
    one graph, in which no hook may be; one that is called in a compiled function, from which hooks
    are called that are not to be compiled themselves; and one that attaches only after a forward,
    which has brought a part back by then."""
    losses, run = killed(cluster, tmp_path, kind)
    assert (
        "NOT protected" not in run.errors() and "no snapshots are taken" not in run.errors()
    ), run.errors()
    last = Run(tmp_path, [kind, STEPS], 1, under(cluster, "--resume"), script=SCRIPT)
    assert last.wait() == 0, last.errors()
    done = int(re.search(r"the state after update (\d+)", last.errors()).group(1))
    assert [last.steps()[step] for step in range(STEPS)] == [
        losses[step + done] for step in range(STEPS)
    ], last.errors()


@pytest.mark.parametrize("kind", ["loose", "half"])
def test_what_has_no_name_comes_back_with_nothing_else(cluster, tmp_path, kind):  # noqa: F811
    """Where an unchanged script cannot find a parameter again none is restored: half a state is
    nobody's."""
    losses, _ = killed(cluster, tmp_path, kind)
    last = Run(tmp_path, [kind, STEPS], 1, under(cluster, "--resume"), script=SCRIPT)
    assert last.wait() == 0, last.errors()
    assert last.steps() == {step: losses[step] for step in range(STEPS)}, last.errors()
    assert (
        "has parameters that belong to no module, optimizer" in last.errors()
        and "resumed: " not in last.errors()
    ), last.errors()


def test_half_of_a_job_stops(cluster, tmp_path):  # noqa: F811
    """One of two models has come back, and the other cannot: the process stops before it trains on
    both."""
    killed(cluster, tmp_path, "two")
    last = Run(tmp_path, ["half", STEPS], 1, under(cluster, "--resume"), script=SCRIPT)
    assert last.wait() == 1, last.errors()
    assert (
        re.search(r"only a part of step \d+ came back, .*: not optimizer1.group0.0", last.errors())
        and not last.steps()
    ), last.errors()


def test_a_scheduler_that_cannot_be_loaded_stops(cluster, tmp_path):  # noqa: F811
    """By then moments have memory, and nothing in it yet."""
    killed(cluster, tmp_path, "raising")
    last = Run(tmp_path, ["raising", STEPS], 1, under(cluster, "--resume"), script=SCRIPT)
    assert last.wait() == 1, last.errors()
    assert (
        "failed half-way (ValueError: it is of another year)" in last.errors() and not last.steps()
    ), last.errors()


@pytest.mark.parametrize("frozen", [False, True])
def test_copies_that_the_script_updates(job, frozen):
    """Written to by `.data` after the update, which no version counter tells: parameters in lower
    precision whose masters are trained, and an average in a module of its own."""
    model, copy = test_torch_fence.model_of(), test_torch_fence.model_of().bfloat16()
    copy.requires_grad_(not frozen)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    job.attach(
        {"": model, "copy": copy}, [optimizer], test_torch_fence._extras.Extras(None, None, None)
    )
    pairs = list(zip(copy.parameters(), model.parameters()))

    def update_copies(step):
        for mine, trained in pairs if step else ():
            mine.data.mul_(0.9).add_(trained.data, alpha=0.1)

    capture = train_with(model, optimizer, update_copies)
    assert capture.good == [1, 2, 3, 4] and capture.bad == [], (capture.good, capture.bad, job.said)


def train_with(model, optimizer, after):
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 6), 0.1 * (step + 1))).square().sum().backward()
        optimizer.step()
        after(step + 1)
    model(torch.ones(2, 6))
    test_torch_fence._current.job._finish()
    return test_torch_fence._current.job.client


class Momentum(torch.nn.Module):
    """Its second half follows the first in each forward, as in MoCo."""

    def __init__(self):
        super().__init__()
        self.first, self.second = test_torch_fence.model_of(2), test_torch_fence.model_of(2)
        self.second.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for mine, other in zip(self.second.parameters(), self.first.parameters()):
                mine.lerp_(other, 0.1)
        return self.first(x) + self.second(x)


def test_averages_that_forward_updates(job):
    """They are captured from a copy from the second snapshot on, as large buffers are."""
    model = Momentum()
    job.client.always_captured = True
    capture = train_with(model, torch.optim.AdamW(model.first.parameters()), lambda step: None)
    assert capture.bad == [1] and capture.good == [2, 3, 4], (capture.good, capture.bad, job.said)
    assert not any("something other than the optimizer" in line for line in job.said), job.said


def test_deepspeed(job, monkeypatch):
    """Its optimizers step parts of their own copies: no snapshot of one part passes for the job.
    Not so where the engine itself steps."""
    monkeypatch.setitem(sys.modules, "deepspeed", sys)
    for caller, refused in (
        ("deepspeed.runtime.engine", False),
        ("deepspeed.runtime.zero.stage_1_and_2", True),
    ):
        model = test_torch_fence.model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        job.attach({"": model}, [optimizer], test_torch_fence._extras.Extras(None, None, None))
        place = {"__name__": caller, "optimizer": optimizer}
        exec("def step():\n    optimizer.step()", place)
        engine = type(
            "Engine", (), {"zero_grad": optimizer.zero_grad, "step": staticmethod(place["step"])}
        )
        capture = test_torch_fence.train(model, [engine])
        assert bool(capture.good) != refused, job.said
        capture.good.clear()
    said = "no snapshots are taken: DeepSpeed (deepspeed.runtime.zero.stage_1_and_2) updates copies"
    assert any(said in line for line in job.said), job.said


class InOthers(torch.Tensor):
    """As quantised moments are: its values lie in another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


def test_tensors_without_memory_of_their_own():
    assert (
        _tensors.uncovered(InOthers(torch.zeros(3, dtype=torch.int8)))
        == "it is a InOthers, whose values lie in other tensors"
    )
    assert _tensors.uncovered(torch.zeros(3)) is None


def test_state_beside_parameters_is_no_error():
    """Also where it is a tensor, which cannot be asked whether it is true."""
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    known = _known.Known(lambda: optimizer, 0)
    before = known.count()
    optimizer.state["all"] = torch.zeros(3)
    assert known.count() != before and list(known.beside()) == ["all"]


class Wrapper:
    """As Megatron-Core's optimizers are: not torch's, around one of torch's, with a scale of its
    own."""

    def __init__(self, optimizer):
        self.optimizer, self.scale = optimizer, 65536.0


def test_what_wrappers_keep_is_said(job):
    model = test_torch_fence.model_of()
    _torch.attach(model, Wrapper(torch.optim.AdamW(model.parameters())), None, None, None)
    said = [
        line
        for line in job.said
        if "what the Wrapper around an optimizer keeps itself is not covered" in line
    ]
    assert len(said) == 1 and "name in `extra`" in said[0], job.said
