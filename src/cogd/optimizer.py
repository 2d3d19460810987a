"""CoGD around any PyTorch optimizer."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from cogd import projection
from cogd.bundle import Bundle, bundled, pieces
from cogd.checks import check_base, check_rule, checked_couplings, refuse_sparse_gradients
from cogd.coupling import Coupling
from cogd.state import JointState, check_memory, split_memory

Rule = Literal["descent", "paper", "rollback"] | None


@dataclass(frozen=True)
class ProjectionStats:
    """What the last projection did to one coupling: gates opened, of how many, and the l2 norm of the correction.

    >>> stats = ProjectionStats("1.weight * 0.weight", opened=4, coordinates=16, correction=0.02)
    >>> f"{stats.name}: {stats.opened / stats.coordinates:.0%} open"
    '1.weight * 0.weight: 25% open'
    """

    name: str
    opened: int
    coordinates: int
    correction: float


class Observation(NamedTuple):
    """What a projection needs to know from before the base's step.

    `factors` are, for each part of the bundle, beta of a projected partner, whose A(t) is held anyway; beta x(t) of a
    projected sparse side; nothing for rollback.
    """

    bundle: Bundle
    opened: Tensor
    factors: list[Tensor | None]


class CoGD(Optimizer):
    """Coordinate coupled parameters on top of `base`: a drop-in `torch.optim.Optimizer`.

    Every `period`-th step, coordinates whose sparse side fell behind its partner are corrected after the base's step by
    beta_j x_j(t), |beta_j| = scale * lr * |<g, dA_j/dx_j>^order|. A coupling rests while one of its tensors has no
    gradient. Memory beyond the base's: one copy of the coupled tensors; during a projecting step at most one more of
    the projected ones, and a few of what is computed at a time, at most 3 million numbers or one coordinate.

    Args:
        base: the optimizer that takes the steps; it holds every coupled parameter.
        couplings: what is coupled with what; see `couple_conv_norm`, `couple_factors`, `couple_named`, `Coupling`.
        rule: "descent", the sign of the total derivative; "paper", the printed sign; "rollback", back to the value
            after the previous projection, which takes no order or scale but the defaults; None, the base alone, bit
            for bit.
        order: the kernel's exponent, an integer from 1. An even one makes beta's sign constant.
        scale: how strong the correction is; 1 is the full total derivative.
        period: steps from one projection to the next; the paper projects once per epoch.

    >>> down, up = torch.nn.Linear(64, 8, bias=False), torch.nn.Linear(8, 64, bias=False)
    >>> base = torch.optim.SGD([down.weight, up.weight], lr=0.1, momentum=0.9)
    >>> optimizer = CoGD(base, [Coupling(down.weight, up.weight, partner_dim=1)], rule="descent", period=10)
    >>> optimizer.param_groups is base.param_groups
    True
    """

    _step_supports_amp_scaling = False  # the rule reads true gradients: a fused base must not receive scaled ones

    def __init__(
        self,
        base: Optimizer,
        couplings: Iterable[Coupling],
        *,
        rule: Rule = "descent",
        order: int = 1,
        scale: float = 1e-3,
        period: int = 1,
    ):
        check_base(base)
        check_rule(rule, order, scale, period)
        self.base, self.couplings = base, checked_couplings(couplings, base, rule)
        self.rule, self.order, self.scale, self.period = rule, order, scale, period
        # Written into and never assigned again: torch.compile drops assignments to an Optimizer's attributes.
        self._counts = {"cogd_steps": 0, "cogd_projections": 0}
        self._held: dict[Tensor, Tensor] = {}
        self._bundles = bundled(self.couplings, base.param_groups)
        self._stats: list[tuple[Bundle, Tensor, list[Tensor]]] = []
        super().__setstate__({})  # the hooks of an Optimizer, without the groups that its __init__ would make
        if base.state:  # as Adagrad's from the start: from then on a state_dict must not change its layout
            self._hold_room()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base's parameter groups themselves."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The base's defaults."""
        return self.base.defaults

    @property
    def state(self) -> JointState:  # type: ignore[override]
        """The state of each parameter, the base's and the rule's, as one live mapping."""
        return JointState(self.base.state, self._held, self.memory_of, self._forget)

    @property
    def last_stats(self) -> list[ProjectionStats]:
        """What the last projection did, one entry per coupling that took part; reading it waits for the device."""
        stats = {}
        for bundle, gates, sizes in self._stats:
            of_parts = zip(*(size.tolist() for size in sizes), strict=True)
            for coupling, opened, of in zip(bundle.couplings, gates.sum(1).tolist(), of_parts, strict=True):
                stats[coupling] = ProjectionStats(coupling.name, opened, gates.shape[1], math.hypot(*of))
        return [stats[coupling] for coupling in self.couplings if coupling in stats]

    @property
    def projects_next(self) -> bool:
        """Whether the next step is a projecting one."""
        return self.rule is not None and (self._counts["cogd_steps"] + 1) % self.period == 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of the base; every `period`-th is a projecting one. The closure runs as the base runs it."""
        projecting = self.projects_next
        if closure is None:
            observed = self._observe(projecting)
            loss = self.base.step()
        else:
            seen: list[list[Observation]] = []

            def observed_closure():
                value = closure()
                if not seen:  # a base such as LBFGS calls again, from elsewhere
                    seen.append(self._observe(projecting))
                return value

            loss = self.base.step(observed_closure)
            observed = seen[0]
        if projecting:
            self._project(observed)
        self._hold_room()
        self._counts["cogd_steps"] += 1
        return loss

    def count_step(self) -> None:
        """Count a step that the base took without `step`, replayed from a CUDA graph; it must not be a projecting one.

        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = CoGD(torch.optim.SGD([weight], lr=0.1), [], period=2)
        >>> optimizer.count_step()
        >>> optimizer.projects_next
        True
        """
        if self.projects_next:
            raise RuntimeError(f"step {self._counts['cogd_steps'] + 1} is a projecting one; take it by step().")
        self._counts["cogd_steps"] += 1

    def project(self) -> None:
        """Project now, for who drives the rule by hand, outside of `step`.

        Call it after the backward pass and before `base.step()`: there the gradients belong to the present values.
        It moves those, so that with `rollback` the base's step starts from the earlier value.
        """
        self._project(self._observe())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients as the base does."""
        self.base.zero_grad(set_to_none=set_to_none)

    def train(self) -> None:
        """Switch the base to training mode, if it has modes as schedule-free optimizers do; otherwise do nothing."""
        _switch(self.base, "train")

    def eval(self) -> None:
        """Switch the base to evaluation mode, if it has modes as schedule-free optimizers do; otherwise do nothing."""
        _switch(self.base, "eval")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base."""
        self.base.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the base's state_dict with the rule's own entries beside the base's: one more per coupled tensor."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        packed = self.base.state_dict()
        if self._held:  # every parameter gets an entry, as distributed checkpoints expect
            packed["state"] = {
                position: {**packed["state"].get(position, {}), **self.memory_of(parameter)}
                for position, parameter in enumerate(self._parameters())
            }
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, packed)
            packed = packed if changed is None else changed
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; a checkpoint of the base alone loads too, and the rule starts afresh."""
        state_dict = dict(state_dict)
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        mine, base = split_memory(state_dict["state"])
        positions = (position for group in state_dict["param_groups"] for position in group["params"])
        owners = dict(zip(positions, self._parameters(), strict=False))  # distributed checkpoints use names
        memory = {owners[position]: entries for position, entries in mine.items() if position in owners}
        check_memory(memory, self._remembered(), self._key)
        self.base.load_state_dict({**state_dict, "state": base})
        self._forget()
        self._held.update({p: entries[self._key].to(p, copy=True) for p, entries in memory.items()})
        counts = next(iter(memory.values()), {})
        self._counts.update({name: counts.get(name, 0) for name in self._counts})
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def memory_of(self, parameter: Tensor) -> dict[str, Any]:
        """Return what the rule remembers of a parameter, under names that start with "cogd_"."""
        if parameter not in self._held:
            return {}
        return {self._key: self._held[parameter], **self._counts}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("base", "couplings", "rule", "order", "scale", "period", "_counts", "_held", "_bundles", "_stats")
        return {name: self.__dict__[name] for name in kept}

    def __repr__(self) -> str:
        settings = f"rule={self.rule!r}, order={self.order}, scale={self.scale}, period={self.period}"
        return f"CoGD({settings}, couplings={len(self.couplings)}, base={self.base!r})"

    @property
    def _key(self) -> str:
        """What the held tensors are: values after a projection for rollback, before the base's step otherwise."""
        return "cogd_projected" if self.rule == "rollback" else "cogd_held"

    def _forget(self) -> None:
        self._held.clear()
        self._counts.update(dict.fromkeys(self._counts, 0))

    def _parameters(self) -> Iterator[Tensor]:
        """Yield the parameters in the order of state_dict's positions."""
        return iter(dict.fromkeys(p for group in self.param_groups for p in group["params"]))

    def _remembered(self) -> Iterator[Tensor]:
        """Yield the tensors whose past the rule needs: the projected for rollback, else both of every coupling."""
        if self.rule is None:
            return iter(())
        if self.rule == "rollback":
            return iter([coupling.projected for coupling in self.couplings])
        return iter(dict.fromkeys(side for coupling in self.couplings for side in (coupling.sparse, coupling.partner)))

    def _hold_room(self) -> None:
        """Give every remembered tensor its entry from the first step on, so that all checkpoints look alike."""
        if not self._held:
            self._held.update({p: p.detach().clone() for p in self._remembered()})

    @torch.no_grad()
    def _hold(self) -> None:
        """Remember the present values; one that is not finite leaves the earlier in place."""
        self._hold_room()
        for p, held in self._held.items():
            for present, earlier in zip(pieces(p), pieces(held), strict=True):
                torch.where(projection.finite(present), present, earlier, out=earlier)

    def _observe(self, projecting: bool = True) -> list[Observation]:
        """Judge the gates and form the corrections at (x(t), A(t)) and their gradients."""
        if self.rule is not None:
            refuse_sparse_gradients(self.couplings)
        if not projecting:
            return []
        if not all(bundle.holds for bundle in self._bundles):
            self._bundles[:] = bundled(self.couplings, self.param_groups)
        active = [bundle.with_gradients() for bundle in self._bundles if self._counts["cogd_projections"]]
        with torch.no_grad():  # not as a decorator: torch.compile takes whole only those functions that name torch
            observations = [self._observation(bundle) for bundle in active if bundle.couplings]
        if self.rule != "rollback":
            self._hold()
        return observations

    def _observation(self, bundle: Bundle) -> Observation:
        x_norms, A_norms, factors = [], [], []
        for part in bundle.parts():
            x, A = bundle.sparse(_present, part), bundle.partner(_present, part)
            x_norms.append(projection.block_norms(x))
            A_norms.append(projection.block_norms(A))
            factors.append(None if self.rule == "rollback" else self._factor(bundle, part, x, A))
        return Observation(bundle, bundle.is_open(x_norms, A_norms), factors)

    def _factor(self, bundle: Bundle, part: slice, x: Tensor, A: Tensor) -> Tensor:
        """Return beta or beta x(t), see `Observation`, in the precision of the sum that it is for."""
        delta_A = projection.change(A, bundle.partner(self._held_of, part))
        delta_x = projection.change(x, bundle.sparse(self._held_of, part))
        slope = projection.slope_product(bundle.partner(_gradient, part), delta_A, delta_x, x)
        rate = self._signed_rate(bundle)
        if bundle.couplings[0].project == "sparse":
            return projection.sparse_correction(slope, x, rate, self.order).to(x.dtype)
        return projection.bounded_beta(slope, x, rate, self.order).to(A.dtype)

    def _signed_rate(self, bundle: Bundle) -> float | Tensor:
        """Return +-scale * eta; descent climbs where its group maximizes."""
        projected = bundle.couplings[0].projected
        group = next(g for g in self.param_groups if any(p is projected for p in g["params"]))
        downwards = self.rule == "descent" and not group.get("maximize", False)
        return (-self.scale if downwards else self.scale) * group["lr"]

    def _project(self, observations: list[Observation]) -> None:
        """Project what the base's step made of the observed couplings."""
        self._stats.clear()
        if observations:
            self._correct(observations)
        if self.rule == "rollback":
            self._hold()
        if self.rule is not None:
            self._counts["cogd_projections"] += 1

    @torch.no_grad()
    def _correct(self, observations: list[Observation]) -> None:
        for bundle, opened, factors in observations:
            sizes = []
            for part, factor in zip(bundle.parts(), factors, strict=True):
                new = bundle.projected(_present, part)
                projected = self._projected(bundle, part, new, factor, opened[:, part].flatten())
                sizes.append(torch.linalg.vector_norm(bundle.apart(projected - new).flatten(1), dim=1))
                bundle.put(projected, part)
            self._stats.append((bundle, opened, sizes))

    def _projected(self, bundle: Bundle, part: slice, new: Tensor, factor: Tensor | None, opened: Tensor) -> Tensor:
        if factor is None:
            return projection.rollback(new, bundle.projected(self._held_of, part), opened)
        correction = factor
        if bundle.couplings[0].project == "partner":
            correction = projection.partner_correction(factor, bundle.partner(self._held_of, part))
        return projection.project(new, correction, opened)

    def _held_of(self, parameter: Tensor) -> Tensor:
        return self._held[parameter]


def _switch(base: Optimizer, mode: Literal["train", "eval"]) -> None:
    if hasattr(base, mode):
        getattr(base, mode)()


def _present(parameter: Tensor) -> Tensor:
    return parameter


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
