"""CoGD is a torch.optim.Optimizer wherever one is expected: one row of the table of expectations per test."""

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from conformance import (
    BASES,
    CAPTURABLE,
    SIMPLE,
    all_bases,
    all_rules,
    around,
    bases_soon,
    batches,
    build,
    build_bare,
    couple,
    everything,
    identical,
    loss_of,
    moving_rules,
    needs_cuda,
    new_model,
    step_with_closure,
    step_without_closure,
    train,
    wrap,
)
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.optim import Optimizer, lr_scheduler

from cogd import CoGD, Coupling, couple_factors

DATA = batches(9)


def through_disk(state: Any) -> Any:
    """Return the state as torch.save and a safe torch.load leave it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# What an optimizer is


@all_bases
def test_it_is_an_optimizer_with_the_groups_of_its_base(base):
    _, optimizer = build(base, "descent")
    assert isinstance(optimizer, Optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.defaults is optimizer.base.defaults
    assert "CoGD" in repr(optimizer)
    assert repr(optimizer.base) in repr(optimizer)


@pytest.mark.parametrize("period", [1, 3])
@all_bases
@moving_rules
def test_every_rule_moves_something_in_this_suite(base, rule, period):
    """Without this, the exact equalities below could hold for the lack of any projection."""
    model, optimizer = build(base, rule, period)
    train(model, optimizer, DATA)
    bare, bare_optimizer = build_bare(base, rule)
    train(bare, bare_optimizer, DATA)
    assert not identical(model.state_dict(), bare.state_dict())
    assert all(p.isfinite().all() for p in model.parameters())
    assert sum(entry.opened for entry in optimizer.last_stats) > 0


@all_bases
@pytest.mark.parametrize(
    "idle", ["no rule", "no coupling", "closed gate: descent", "closed gate: paper", "closed gate"]
)
def test_without_a_projection_it_is_its_base_bit_for_bit(base, idle):
    rule: Any = {"no rule": None, "closed gate: paper": "paper", "closed gate": "rollback"}.get(idle, "descent")
    model, optimizer = build(base, rule, period=1, sparse_threshold=0.0)
    if idle == "no coupling":
        optimizer = CoGD(optimizer.base, [])
    bare, bare_optimizer = build_bare(base, rule)
    train(model, optimizer, DATA)
    train(bare, bare_optimizer, DATA)
    assert identical(everything(model, optimizer.base), everything(bare, bare_optimizer))


# Learning rates

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "step": partial(lr_scheduler.StepLR, step_size=2, gamma=0.5),
    "multistep": partial(lr_scheduler.MultiStepLR, milestones=[2, 4]),
    "exponential": partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "one-cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.3, total_steps=20),
    "cyclic": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3),
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=9),
    "restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
    "lambda": partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.9**epoch),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
}
KNOBS = ("lr", "momentum", "betas")


def trajectory(make: Callable, model: nn.Module, optimizer: Optimizer, base: Optimizer) -> list[dict[str, Any]]:
    """Return the base's knobs after each step of training with a scheduler."""
    scheduler, seen = make(optimizer), []
    for batch in DATA:
        train(model, optimizer, [batch], scheduler)
        seen.append({knob: base.param_groups[0].get(knob) for knob in KNOBS})
    return seen


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@bases_soon("momentum", "adam")
def test_schedulers_move_the_bases_knobs_and_warn_of_nothing(scheduler, base):
    model, optimizer = build(base, "descent")
    bare, bare_optimizer = build_bare(base)
    if scheduler in ("one-cycle", "cyclic") and not {"momentum", "betas"} & bare_optimizer.defaults.keys():
        pytest.skip("it cycles a momentum, which this base has none of")
    moved = trajectory(SCHEDULERS[scheduler], model, optimizer, optimizer.base)
    assert moved == trajectory(SCHEDULERS[scheduler], bare, bare_optimizer, bare_optimizer)
    assert len({entry["lr"] for entry in moved}) > 1


def test_a_plateau_lowers_the_bases_lr():
    model, optimizer = build("sgd", "descent")
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for batch in DATA[:2]:
        train(model, optimizer, [batch])
        scheduler.step(1.0)
    assert optimizer.base.param_groups[0]["lr"] == 0.025


# Checkpoints


@all_bases
@all_rules
def test_a_run_resumes_bit_for_bit_in_the_middle_of_a_period(base, rule):
    model, optimizer = build(base, rule)
    train(model, optimizer, DATA[:4])
    saved = through_disk(everything(model, optimizer))
    train(model, optimizer, DATA[4:])

    resumed, resumed_optimizer = build(base, rule)
    train(resumed, resumed_optimizer, DATA[7:])  # what was there must not matter
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    assert identical(everything(resumed, resumed_optimizer), saved)
    train(resumed, resumed_optimizer, DATA[4:])
    assert identical(everything(resumed, resumed_optimizer), everything(model, optimizer))


@pytest.mark.parametrize("saved_after", range(7))
@moving_rules
def test_a_run_resumes_from_any_step(saved_after, rule):
    model, optimizer = build("momentum", rule)
    train(model, optimizer, DATA[:saved_after])
    saved = through_disk(everything(model, optimizer))
    train(model, optimizer, DATA[saved_after:])

    resumed, resumed_optimizer = build("momentum", rule)
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    train(resumed, resumed_optimizer, DATA[saved_after:])
    assert identical(everything(resumed, resumed_optimizer), everything(model, optimizer))


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "lambda"])  # whose lambda is not saved
def test_a_run_with_a_scheduler_resumes_bit_for_bit(name):
    model, optimizer = build("momentum", "descent")
    scheduler = SCHEDULERS[name](optimizer)
    train(model, optimizer, DATA[:4], scheduler)
    saved = through_disk(everything(model, optimizer) | {"scheduler": scheduler.state_dict()})
    train(model, optimizer, DATA[4:], scheduler)

    resumed, resumed_optimizer = build("momentum", "descent")
    resumed_scheduler = SCHEDULERS[name](resumed_optimizer)
    resumed.load_state_dict(saved["model"])
    resumed_scheduler.load_state_dict(saved["scheduler"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    train(resumed, resumed_optimizer, DATA[4:], resumed_scheduler)
    assert identical(everything(resumed, resumed_optimizer), everything(model, optimizer))


@moving_rules
def test_loading_leaves_the_loaded_dict_alone(rule):
    model, optimizer = build("sgd", rule)
    train(model, optimizer, DATA[:4])
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    other, other_optimizer = build("sgd", rule)
    other_optimizer.load_state_dict(saved)
    train(other, other_optimizer, DATA)
    assert identical(saved, before)


@all_bases
@moving_rules
def test_a_checkpoint_of_the_base_alone_starts_the_rule_afresh(base, rule):
    bare, bare_optimizer = build_bare(base, rule)
    train(bare, bare_optimizer, DATA[:4])
    saved = through_disk(everything(bare, bare_optimizer))
    fresh = wrap(bare_optimizer, couple(bare), rule)
    train(bare, fresh, DATA[4:])

    model, optimizer = build(base, rule)
    train(model, optimizer, DATA[:5])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer, DATA[4:])
    assert identical(everything(model, optimizer), everything(bare, fresh))


@pytest.mark.parametrize(("saving", "loading"), [("paper", "rollback"), ("rollback", "paper"), ("paper", None)])
def test_another_rules_memory_is_refused_and_nothing_changes(saving, loading):
    def trained(rule, steps):
        model = new_model("paper")
        optimizer = wrap(BASES["momentum"](model.parameters()), couple(model), rule)
        train(model, optimizer, DATA[:steps])
        return model, optimizer

    _, optimizer = trained(saving, 4)
    other, other_optimizer = trained(loading, 2)
    before = everything(other, other_optimizer)
    with pytest.raises(ValueError, match=r"memory of another rule .* drop the entries named cogd_\*"):
        other_optimizer.load_state_dict(optimizer.state_dict())
    assert identical(everything(other, other_optimizer), before)


def test_the_memory_of_other_couplings_is_refused():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    first, second = (
        CoGD(torch.optim.SGD(model.parameters(), lr=0.1), [coupling]) for coupling in couple_factors(model)
    )
    model(torch.ones(1, 4)).sum().backward()
    first.step()
    with pytest.raises(ValueError, match="memory of another rule or of other couplings"):
        second.load_state_dict(first.state_dict())


def test_a_checkpoint_of_another_model_is_refused_as_torch_refuses_it():
    model, optimizer = build("sgd", "descent")
    train(model, optimizer, DATA[:1])
    part = CoGD(torch.optim.SGD([*model[1].parameters()], lr=0.1), [])
    for saved in (optimizer.state_dict(), optimizer.base.state_dict()):
        with pytest.raises(ValueError, match=r"doesn't match the size|other couplings"):
            part.load_state_dict(saved)


def copy_by_pickle(pair):
    return pickle.loads(pickle.dumps(pair))  # noqa: S301 - our own bytes


@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")  # torch's, of any such copy
@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy_by_pickle])
@bases_soon(*BASES, without=("lbfgs",))
@all_rules
def test_copies_of_model_and_optimizer_go_on_exactly_and_alone(duplicate, base, rule):
    model, optimizer = build(base, rule)
    train(model, optimizer, DATA[:4])
    twin, twin_optimizer = duplicate((model, optimizer))
    before = everything(twin, twin_optimizer)
    train(model, optimizer, DATA[4:])
    assert identical(everything(twin, twin_optimizer), before)
    train(twin, twin_optimizer, DATA[4:])
    assert identical(everything(twin, twin_optimizer), everything(model, optimizer))
    twin_optimizer.register_step_post_hook(lambda *_: None)
    assert not {*model.parameters()} & {*twin_optimizer.state}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy_by_pickle])
@pytest.mark.parametrize("make", [build_bare, build])
def test_copies_of_lbfgs_cannot_step_wrapped_or_not(make, duplicate):
    """PyTorch's own __getstate__ drops what its __init__ computed."""
    model, optimizer = make("lbfgs", "descent")
    train(model, optimizer, DATA[:4])
    twin, twin_optimizer = duplicate((model, optimizer))
    with pytest.raises(AttributeError, match="_params"):
        train(twin, twin_optimizer, DATA[4:])


# Steps


@pytest.mark.parametrize("base", [name for name in SIMPLE if name != "lbfgs"])  # which takes no other groups
@all_rules
def test_a_group_added_later_trains_and_is_saved(base, rule):
    def grown(steps):
        model = new_model(rule)
        optimizer = wrap(BASES[base]([*model.parameters()][:-1]), couple(model), rule)
        train(model, optimizer, steps)
        optimizer.add_param_group({"params": [*model.parameters()][-1:], "lr": 0.1})
        return model, optimizer

    model, optimizer = grown(DATA[:4])
    assert [group["lr"] for group in optimizer.base.param_groups][-1] == 0.1
    late = [*model.parameters()][-1].detach().clone()
    train(model, optimizer, DATA[4:6])
    assert not torch.equal(late, [*model.parameters()][-1])
    saved = through_disk(everything(model, optimizer))
    train(model, optimizer, DATA[6:])
    resumed, resumed_optimizer = grown([])
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    train(resumed, resumed_optimizer, DATA[6:])
    assert identical(everything(resumed, resumed_optimizer), everything(model, optimizer))


@pytest.mark.parametrize("base", [name for name in SIMPLE if name != "lbfgs"])
@all_rules
def test_the_closure_runs_once_with_gradients_enabled_and_its_loss_comes_back(base, rule):
    model, optimizer = build(base, rule)
    plain, plain_optimizer = build(base, rule)
    for batch in DATA:
        losses: list[torch.Tensor] = []

        def closure(batch=batch, losses=losses):
            assert torch.is_grad_enabled()
            optimizer.zero_grad()
            losses.append(loss_of(model, batch))
            losses[-1].backward()
            return losses[-1]

        with torch.no_grad():
            returned = optimizer.step(closure)
        assert [id(loss) for loss in losses] == [id(returned)]
        assert step_without_closure(plain, plain_optimizer, batch) is None
    assert identical(everything(model, optimizer), everything(plain, plain_optimizer))


@all_rules
def test_lbfgs_gets_the_closure_as_often_as_it_asks(rule):
    model, optimizer = build("lbfgs", rule, period=1)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    model.register_forward_hook(lambda *_: calls.append("evaluation"))
    loss = step_with_closure(model, optimizer, DATA[0])
    assert calls == ["evaluation"] * 3 + ["step"]
    assert loss.requires_grad


def test_hooks_fire_on_the_wrapper_in_torchs_order():
    model, optimizer = build("momentum", "descent", period=1)
    fired: list[str] = []

    def note(name, *_):
        fired.append(name)

    handles = [
        optimizer.register_step_pre_hook(partial(note, "before step")),
        optimizer.register_step_post_hook(partial(note, "after step")),
        optimizer.base.register_step_post_hook(partial(note, "base's")),
        optimizer.register_state_dict_pre_hook(partial(note, "before saving")),
        optimizer.register_state_dict_post_hook(lambda _, packed: note("after saving") or packed | {"mark": 1}),
        optimizer.register_load_state_dict_pre_hook(lambda _, packed: note(f"before loading {packed.pop('mark')}")),
        optimizer.register_load_state_dict_post_hook(partial(note, "after loading")),
    ]
    train(model, optimizer, DATA[:1])
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    expected = ["before step", "base's", "after step", "before saving", "after saving"]
    assert fired == [*expected, "before loading 1", "after loading"]
    assert saved["mark"] == 1
    for handle in handles:
        handle.remove()
    train(model, optimizer, DATA[:1])
    assert optimizer.state_dict().keys() == {"state", "param_groups"}
    assert len(fired) == 7


def test_a_step_pre_hook_may_replace_the_closure():
    model, optimizer = build("sgd", "descent", period=1)

    def replace_closure(_, args, kwargs):
        return (args[0], lambda: args[1]() * 0 + 7), kwargs

    optimizer.register_step_pre_hook(replace_closure)
    assert step_with_closure(model, optimizer, DATA[0]) == 7


# Mixed precision


def scaled_step(model, optimizer, scaler, batch, *, spoil=False):
    """Take one step by way of a gradient scaler."""
    optimizer.zero_grad()
    scaler.scale(loss_of(model, batch)).backward()
    if spoil:
        next(model.parameters()).grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()


@bases_soon(*BASES, without=("lbfgs", *CAPTURABLE))
@all_rules
def test_a_gradient_scaler_changes_nothing(base, rule):
    """A power of two scales exactly, fused bases included: they see gradients that were unscaled before."""
    model, optimizer = build(base, rule)
    scaled, scaled_optimizer = build(base, rule)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for batch in DATA:
        train(model, optimizer, [batch])
        scaled_step(scaled, scaled_optimizer, scaler, batch)
    assert identical(everything(scaled, scaled_optimizer), everything(model, optimizer))


@bases_soon("momentum", "sgd-fused", "adam-fused", without=("lbfgs", *CAPTURABLE))
@all_rules
def test_a_skipped_step_moves_nothing_and_does_not_advance_the_rule(base, rule):
    model, optimizer = build(base, rule)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for batch in DATA[:5]:
        scaled_step(model, optimizer, scaler, batch)
    parameters, state = [p.detach().clone() for p in model.parameters()], copy.deepcopy(optimizer.state_dict())
    scaled_step(model, optimizer, scaler, DATA[5], spoil=True)
    assert scaler.get_scale() == 2.0**9
    assert identical([p.detach() for p in model.parameters()], parameters)
    assert identical(optimizer.state_dict(), state)


# torch.compile


@pytest.fixture
def _fresh_dynamo():
    """Forget what was compiled before and after, and fail where recompilation does not end."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


compiling = [
    pytest.mark.usefixtures("_fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # in torch itself
]


def with_compiler(test):
    """Mark a test that compiles."""
    for mark in compiling:
        test = mark(test)
    return test


def train_compiled(model, optimizer, data, backend, scheduler=None):
    """Train with the step compiled, which PyTorch tells to compile after the scheduler has wrapped it."""
    step = torch.compile(optimizer.step, backend=backend)
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        step()
        if scheduler is not None:
            scheduler.step()


@with_compiler
@pytest.mark.parametrize(
    ("backend", "base", "period"),
    [
        ("eager", "momentum", 1),
        ("eager", "momentum", 3),
        ("eager", "adam", 3),
        ("aot_eager", "momentum", 3),
        ("aot_eager", "adam", 1),
        pytest.param("inductor", "adam", 1, marks=pytest.mark.slow),
        *(
            pytest.param("eager", name, 3, marks=[pytest.mark.slow, *([needs_cuda] if name in CAPTURABLE else [])])
            for name in BASES
            if name not in ("momentum", "adam", "lbfgs")
        ),
    ],
)
@all_rules
def test_a_compiled_step_gives_the_same_numbers(backend, base, rule, period, monkeypatch):
    model, optimizer = around(new_model(rule, base).double(), base, rule, period)
    compiled, compiled_optimizer = around(new_model(rule, base).double(), base, rule, period)
    if base != "momentum":  # others may round otherwise once compiled, so that the twin compiles the base alone
        monkeypatch.setattr(optimizer.base, "step", torch.compile(optimizer.base.step, backend=backend))
    train(model, optimizer, DATA)
    train_compiled(compiled, compiled_optimizer, DATA, backend)
    exact = backend != "inductor"  # which fuses; in float64
    close = partial(torch.testing.assert_close, rtol=0.0 if exact else 1e-8, atol=0.0 if exact else 1e-10)
    close(compiled.state_dict(), model.state_dict())
    for p, q in zip(compiled.parameters(), model.parameters(), strict=True):
        close(compiled_optimizer.memory_of(p), optimizer.memory_of(q))


@with_compiler
@moving_rules
def test_many_couplings_and_a_moving_lr_do_not_recompile_without_end(rule):
    """There are more couplings and steps than recompilations allowed, so none may cost one each."""

    def chain():
        torch.manual_seed(0)
        layers = [nn.Flatten(), *(nn.Linear(32, 32) for _ in range(10)), nn.Linear(32, 3)]
        model = nn.Sequential(*layers)
        pairs = itertools.pairwise(layers[1:])
        side: Any = "partner" if rule == "paper" else "sparse"
        couplings = [
            Coupling(a.bias, b.weight, partner_dim=1, project=side, name=f"{i}")
            for i, (a, b) in enumerate(pairs)
            if isinstance(a, nn.Linear) and isinstance(b, nn.Linear)
        ]
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), couplings, rule, period=1)
        return model, optimizer, lr_scheduler.ExponentialLR(optimizer, 0.9)

    model, optimizer, scheduler = chain()
    train(model, optimizer, DATA * 2, scheduler)
    compiled, compiled_optimizer, compiled_scheduler = chain()
    train_compiled(compiled, compiled_optimizer, DATA * 2, "eager", compiled_scheduler)
    assert len(optimizer.last_stats) == 10
    assert all(entry.opened and entry.correction for entry in optimizer.last_stats)
    torch.testing.assert_close(compiled.state_dict(), model.state_dict(), rtol=0.0, atol=0.0)


@moving_rules
def test_no_step_waits_for_the_device(rule):
    """On fake tensors, whose values nobody can read, a step that asks for one raises."""
    with FakeTensorMode() as fake:
        model = new_model(rule)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), couple(model), rule, period=1)
        train(model, optimizer, [(fake.from_tensor(inputs), fake.from_tensor(targets)) for inputs, targets in DATA[:3]])
        with pytest.raises(DataDependentOutputException):
            assert optimizer.last_stats  # this does wait


# Parameters of every kind


@bases_soon("momentum", "adam")
@all_rules
def test_frozen_parameters_rest_and_the_run_still_resumes(base, rule):
    def frozen():
        model = new_model(rule, base)
        coupled = couple(model)
        for p in [*model.parameters()][-2:]:
            p.requires_grad_(False)
        return model, wrap(BASES[base](model.parameters()), coupled, rule)

    model, optimizer = frozen()
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, DATA[:4])
    still = [torch.equal(p, earlier) for p, earlier in zip(model.parameters(), before, strict=True)]
    assert still[-2:] == [True, True]
    assert not still[0]
    saved = through_disk(everything(model, optimizer))
    train(model, optimizer, DATA[4:])
    resumed, resumed_optimizer = frozen()
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    train(resumed, resumed_optimizer, DATA[4:])
    assert identical(everything(resumed, resumed_optimizer), everything(model, optimizer))


@bases_soon("sgd", "adam", without=("lbfgs",))  # which reads gradients from its closure alone
@moving_rules
def test_a_coupling_rests_while_a_side_has_no_gradient(base, rule):
    model, optimizer = build(base, rule, period=1)
    (coupling,) = optimizer.couplings
    train(model, optimizer, DATA[:3])
    before = coupling.projected.detach().clone()
    optimizer.zero_grad()
    loss_of(model, DATA[3]).backward()
    coupling.sparse.grad = coupling.partner.grad = None
    optimizer.step()
    assert torch.equal(coupling.projected, before)
    assert optimizer.last_stats == []
    train(model, optimizer, DATA[3:])
    assert len(optimizer.last_stats) == 1


@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")  # torch's, of any such copy
@bases_soon("momentum", "adam", without=("lbfgs",))  # whose copies cannot step
def test_a_tied_parameter_trains_copies_and_resumes(base):
    def tied():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), *(nn.Linear(32, 32, bias=False) for _ in range(3)), nn.Linear(32, 3))
        model[3].weight = model[1].weight
        if base in CAPTURABLE:
            model.cuda()
        coupling = Coupling(model.get_parameter("1.weight"), model.get_parameter("2.weight"), partner_dim=1)
        return model, CoGD(BASES[base](model.parameters()), [coupling], scale=1.0, period=3)

    model, optimizer = tied()
    train(model, optimizer, DATA[:4])
    saved = through_disk(everything(model, optimizer))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    resumed, resumed_optimizer = tied()
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    for run in [(model, optimizer), (twin, twin_optimizer), (resumed, resumed_optimizer)]:
        train(*run, DATA[4:])
        (stats,) = run[1].last_stats
        assert stats.opened > 0
        assert stats.correction > 0
    assert twin[3].weight is twin[1].weight
    assert identical(everything(twin, twin_optimizer), everything(model, optimizer))
    assert identical(everything(resumed, resumed_optimizer), everything(model, optimizer))


@bases_soon("momentum", "adam", without=("lbfgs",))  # whose closure would accumulate
@all_rules
def test_accumulated_gradients_equal_those_of_the_big_batch(base, rule):
    # In evaluation mode no norm takes statistics of half a batch.
    whole, whole_optimizer = around(new_model(rule, base).double().eval(), base, rule)
    parts, parts_optimizer = around(new_model(rule, base).double().eval(), base, rule)
    for batch in DATA:
        step_without_closure(whole, whole_optimizer, batch)
        parts_optimizer.zero_grad()
        for half in zip(*(tensor.chunk(2) for tensor in batch), strict=True):
            (loss_of(parts, half) / 2).backward()
        parts_optimizer.step()
    # Only the order of the sums differs; bases that divide by a gradient's size magnify the roundings of a small one.
    torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-9, atol=1e-9)


@bases_soon(*SIMPLE, without=("lbfgs",))  # which only minimizes
@pytest.mark.parametrize("rule", ["descent", "rollback", None])  # "paper" keeps its printed sign
def test_maximizing_the_negated_loss_is_minimizing(base, rule):
    model, optimizer = build(base, rule)
    train(model, optimizer, DATA)
    climber = new_model(rule, base)
    climbing = wrap(BASES[base](climber.parameters(), maximize=True), couple(climber), rule)
    for batch in DATA:
        climbing.zero_grad()
        (-loss_of(climber, batch)).backward()
        climbing.step()
    assert identical(climber.state_dict(), model.state_dict())


@moving_rules
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("with_closure", [False, True])
def test_a_sparse_gradient_is_refused_before_anything_moves(rule, period, with_closure):
    embedding, linear = nn.Embedding(5, 1, sparse=True), nn.Linear(5, 3, bias=False)
    side: Any = "partner" if rule == "paper" else "sparse"
    coupling = Coupling(embedding.weight, linear.weight, partner_dim=1, project=side, name="words")
    base = torch.optim.SGD([embedding.weight, linear.weight], lr=0.1, momentum=0.9)
    optimizer = CoGD(base, [coupling], rule=rule, period=period)
    before = [p.detach().clone() for p in (embedding.weight, linear.weight)]

    def closure():
        loss = embedding(torch.tensor([0, 2])).sum() + linear(torch.ones(5)).sum()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="'words' got a sparse gradient; use dense ones"):
        optimizer.step(closure if with_closure else closure() and None)
    assert identical([embedding.weight.detach(), linear.weight.detach()], before)
    assert not base.state


# The state as one mapping


@pytest.mark.parametrize("base", ["sgd", "momentum", "adagrad"])
@all_rules
def test_reading_the_state_leaves_the_bases_alone(base, rule):
    model, optimizer = build(base, rule)
    for steps in (0, 1, 3):
        train(model, optimizer, DATA[:steps])
        before = dict(optimizer.base.state)
        known = {p for p in model.parameters() if p in before or optimizer.memory_of(p)}
        for p in model.parameters():
            assert (p in optimizer.state) == (p in known)
            assert identical(dict(optimizer.state[p]), {**before.get(p, {}), **optimizer.memory_of(p)})
            assert (optimizer.state.get(p) is None) == (p not in known)
        assert {*optimizer.state} == known
        assert len(optimizer.state) == len(known)
        assert optimizer.base.state.keys() == before.keys()


@moving_rules
def test_what_is_written_into_the_state_goes_to_its_owner(rule):
    """Lightning, for one, replaces every entry when it moves an optimizer to a device."""
    model, optimizer = build("momentum", rule)
    train(model, optimizer, DATA[:4])
    before = everything(model, optimizer)
    for entries in optimizer.state.values():
        for name, value in entries.items():
            entries[name] = value.clone() if isinstance(value, torch.Tensor) else value
    assert identical(everything(model, optimizer), before)
    for parameter, entries in optimizer.state.items():
        optimizer.state[parameter] = entries
    assert identical(everything(model, optimizer), before)
    assert all(entries.keys() == {"momentum_buffer"} for entries in optimizer.base.state.values())
    stray = nn.Parameter(torch.ones(2))
    optimizer.state[stray]["note"] = 1
    assert optimizer.base.state[stray] == {"note": 1}
    del optimizer.state[stray]["note"]
    assert optimizer.base.state[stray] == {}


@pytest.mark.parametrize("base", ["sgd", "momentum", "adam"])
@moving_rules
def test_clearing_the_state_starts_base_and_rule_afresh(base, rule):
    model, optimizer = build(base, rule)
    optimizer.state.clear()
    train(model, optimizer, DATA[:5])
    optimizer.state.clear()
    assert not optimizer.state
    assert not optimizer.base.state
    fresh, fresh_optimizer = build(base, rule)
    fresh.load_state_dict(model.state_dict())
    for run in (model, optimizer), (fresh, fresh_optimizer):
        train(*run, DATA[5:])
    assert identical(everything(model, optimizer), everything(fresh, fresh_optimizer))
    with pytest.raises(KeyError):
        del optimizer.state[nn.Parameter(torch.ones(2))]
