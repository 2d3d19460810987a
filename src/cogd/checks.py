"""What the optimizer refuses at construction, each refusal with the argument, the range, the value and the remedy."""

import math
from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from cogd.coupling import Coupling

RULES = ("descent", "paper", "rollback", None)
DEFAULT_ORDER, DEFAULT_SCALE = 1, 1e-3


def check_base(base: Any) -> None:
    """Refuse what is no optimizer, and optimizers whose steps the rule cannot follow."""
    if not isinstance(base, Optimizer):
        raise TypeError(
            f"base must be a torch.optim.Optimizer instance; got {type(base).__name__}. "
            "Build it first, as in CoGD(torch.optim.SGD(model.parameters(), lr=0.1), couplings)."
        )
    for group in base.param_groups:
        if "lr" not in group:
            raise ValueError(
                f"every parameter group of base needs an 'lr'; {type(base).__name__} has one with none. "
                "Set group['lr'] to the size of its steps."
            )
        if group.get("differentiable", False):
            raise ValueError(
                "base has differentiable=True, but a projection has no gradient; set differentiable=False."
            )
    _check_layout(base)


def _check_layout(base: Optimizer) -> None:
    """Refuse a base whose checkpoints have another layout than PyTorch's, before there is anything to lose."""
    try:
        missing = {"state", "param_groups"} - base.state_dict().keys()
    except RuntimeError:  # ZeroRedundancyOptimizer has no state_dict before it is consolidated
        return
    if missing:
        raise ValueError(
            f"base.state_dict() must hold 'state' and 'param_groups', as PyTorch's optimizers' do; "
            f"{type(base).__name__}'s lacks {', '.join(map(repr, sorted(missing)))}. Let it wrap CoGD instead."
        )


def check_rule(rule: Any, order: Any, scale: Any, period: Any) -> None:
    """Refuse settings outside of their range, and settings that the rule does not take."""
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}; got {rule!r}.")
    if not _is_integer(order) or order < 1:
        raise ValueError(
            f"order must be an integer >= 1, the exponent of the kernel; got {order!r}. For the derivative give 1."
        )
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale) or scale < 0:
        raise ValueError(
            f"scale must be a finite number >= 0; got {scale!r}. For the opposite sign choose another rule."
        )
    if not _is_integer(period) or period < 1:
        raise ValueError(f"period must be an integer >= 1, the steps from one projection to the next; got {period!r}.")
    if rule == "rollback" and (order, scale) != (DEFAULT_ORDER, DEFAULT_SCALE):
        raise ValueError(f"rule='rollback' takes no order or scale; got order={order}, scale={scale}. Leave them out.")


def checked_couplings(couplings: Any, base: Optimizer, rule: Any) -> list[Coupling]:
    """Return the couplings; refuse those that are not the base's, project a tensor twice, or have no such rule."""
    if not isinstance(couplings, Iterable):
        raise TypeError(
            f"couplings must be a list of Coupling objects; got {type(couplings).__name__}. "
            "For one coupling write [coupling], for none []."
        )
    couplings = list(couplings)
    owned = {id(p) for group in base.param_groups for p in group["params"]}
    projected: dict[int, str] = {}
    for i, coupling in enumerate(couplings):
        if not isinstance(coupling, Coupling):
            raise TypeError(
                f"couplings must hold Coupling objects; couplings[{i}] is a {type(coupling).__name__}. "
                "Make them, as in CoGD(base, couple_conv_norm(model), rule='paper')."
            )
        label = f"couplings[{i}]" + (f" ({coupling.name})" if coupling.name else "")
        for side in ("sparse", "partner"):
            if id(getattr(coupling, side)) not in owned:
                raise ValueError(
                    f"{label}: its {side} tensor of shape {tuple(getattr(coupling, side).shape)} is no parameter of "
                    f"base. Give base every coupled parameter, and the couplings the parameters themselves, not copies."
                )
        earlier = projected.setdefault(id(coupling.projected), label)
        if earlier != label:
            raise ValueError(f"{earlier} and {label} project the same tensor; keep one of them.")
        _check_fit(label, coupling, rule)
    return couplings


def refuse_sparse_gradients(couplings: Iterable[Coupling]) -> None:
    """Refuse sparse gradients, whose absent entries the rule would have to guess; a dense tensor's are COO if any."""
    for coupling in couplings:
        if any(side.grad is not None and side.grad.is_sparse for side in (coupling.sparse, coupling.partner)):
            raise RuntimeError(f"coupling {coupling.name!r} got a sparse gradient; use dense ones (sparse=False).")


def _check_fit(label: str, coupling: Coupling, rule: Any) -> None:
    if coupling.project == "sparse" or rule in ("rollback", None):
        return
    if rule == "descent":
        raise ValueError(
            f"{label} projects its partner, for which rule='descent' is not defined; "
            "choose rule='paper' or 'rollback', or couple with project='sparse'."
        )
    if coupling.sparse.numel() != coupling.size:
        raise ValueError(
            f"{label} projects its partner by rule='paper', which divides by one sparse number per coordinate; got "
            f"{coupling.sparse.numel() // coupling.size}. Choose rule='rollback', or couple with project='sparse'."
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
