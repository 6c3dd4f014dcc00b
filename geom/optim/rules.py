"""Rules that say on which manifold a parameter lives, and which rule has which.

    {"attention": "stiefel", "mlp": {"manifold": "dgram"}, "*": "adamw"}

maps a pattern to what the parameters that it matches get. Patterns are globs,
in order; each is matched against a parameter's module (`mlp`), its
`module/projection` (`mlp/up`) and its path (`blocks/mlp/up/kernel`), and the
first rule that may have the parameter has it. A manifold takes kernels only;
vectors, and tables such as token embeddings, fall through to a later rule.

| what | options, all optional |
| --- | --- |
| `euclidean`, `stiefel`, `dgram`, `oblique` | those below |
| `adamw` | weight_decay (of matrices only), lr_factor |

| option | values |
| --- | --- |
| weight_decay | decoupled, times the learning rate; `euclidean` and `dgram` |
| lr_factor | times the learning rate |
| solver | a name of `geom.optim.solvers.SOLVERS` |
| orientation | `short`, `input`, `output`: see `geom.optim.layout` |
| fused | `split` as the role says (qkv in 3), `whole`, a number, or sizes |
| shape_scaling | `none`, `width`, `rms`: see `geom.optim.manifold_muon` |
| retraction | of `dgram` |
| c | of `stiefel`: `W.T W = c^2 I` |
"""

import difflib
import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from geom import manifolds
from geom.manifolds import Manifold
from geom.optim.layout import ORIENTATIONS
from geom.optim.manifold_muon import SHAPE_SCALINGS
from geom.optim.solvers import SOLVERS
from geom.roles import Role

ADAMW = "adamw"
REST = {"*": ADAMW}
DECAYED = {"manifold": "euclidean", "weight_decay": 0.1}

# The arms of arXiv 2606.13276. Its unconstrained one decays its matrices.
NAMED: dict[str, dict[str, Any]] = {
  "unconstrained": {"attention": DECAYED, "mlp": DECAYED, **REST},
  "all_stiefel": {"attention": "stiefel", "mlp": "stiefel", **REST},
  "all_dgram": {"attention": "dgram", "mlp": "dgram", **REST},
  "hetero": {"attention": "stiefel", "mlp": "dgram", **REST},
  "hetero_inv": {"attention": "dgram", "mlp": "stiefel", **REST},
  "adamw": REST,
}

OF_ALL = ("weight_decay", "lr_factor")
OF_MANIFOLDS = ("solver", "orientation", "fused", "shape_scaling")
OF_ONE = {"dgram": ("retraction",), "stiefel": ("c",)}
NAMES = {
  "solver": tuple(SOLVERS),
  "orientation": ORIENTATIONS,
  "shape_scaling": SHAPE_SCALINGS,
}


class Rule(NamedTuple):
  """One rule; an option that it does not set is None.

  Attributes:
    pattern: which parameters it matches.
    manifold: the name of a manifold, or `adamw`.
    the rest: see the module.
  """

  pattern: str
  manifold: str
  weight_decay: float | None = None
  lr_factor: float | None = None
  solver: str | None = None
  orientation: str | None = None
  fused: str | int | tuple[int, ...] | None = None
  shape_scaling: str | None = None
  retraction: str | None = None
  c: float | None = None

  def __str__(self) -> str:
    return f"{self.pattern!r}: {self.manifold}"


def parse(rules: str | Mapping[Any, Any]) -> list[Rule]:
  """The rules of a named assignment or of a mapping, in order.

  Raises:
    ValueError: an unknown assignment, manifold or option (a near one is
      suggested), a senseless value, or weight decay on a manifold that is no
      cone.
  """
  if isinstance(rules, str):
    _require_name("assignment", rules, NAMED)
    rules = NAMED[rules]
  if not rules:
    raise ValueError("an assignment needs rules; there are none")
  return [_rule(pattern, what) for pattern, what in rules.items()]


def make_manifold(
  name: str, *, retraction: str | None = None, c: float | None = None
) -> Manifold:
  """The manifold of a rule: by name, and the option of its own.

  Raises:
    ValueError: an unknown retraction, c not positive.
  """
  if name == "dgram" and retraction is not None:
    return manifolds.dgram(retraction)
  if name == "stiefel" and c is not None:
    return manifolds.scaled_stiefel(c)
  return manifolds.MANIFOLDS[name]()


def check_option(option: str, value: Any) -> Any:
  """The value of an option, once it makes sense.

  Raises:
    ValueError: it does not. An unknown retraction is found later.
  """
  if option in NAMES:
    _require_name(option, value, NAMES[option])
    return value
  if option == "retraction":
    if not isinstance(value, str):
      raise ValueError(f"retraction {value!r} is no name")
    return value
  if option == "fused":
    return _fused(value)
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  least = "at least 0" if option == "weight_decay" else "positive"
  if (
    not number
    or not math.isfinite(value)
    or value < 0
    or (value == 0 and least == "positive")
  ):
    raise ValueError(f"{option} {value!r} is no number that is {least}")
  return float(value)


def claims(
  rules: Iterable[Rule], found: Mapping[str, Role], *, every: bool
) -> dict[str, Rule]:
  """Which rule has which parameter.

  Args:
    rules: in order.
    found: the role of every parameter, by path.
    every: whether every rule must have something, a last `*` excepted.

  Raises:
    ValueError: a parameter is left over; or, with `every`, a rule matches
      nothing, only what it cannot take, or only what earlier rules have.
  """
  rules, has = list(rules), {}
  for rule in rules:
    matching = [p for p, role in found.items() if _matches(rule, p, role)]
    able = [p for p in matching if rule.manifold == ADAMW or found[p].is_kernel]
    new = {p: rule for p in able if p not in has}
    if every and not new and not (rule is rules[-1] and rule.pattern == "*"):
      raise ValueError(_idle(rule, matching, able, has, found))
    has.update(new)
  left = [p for p in found if p not in has]
  if left:
    raise ValueError(
      f"no rule claims parameter {', '.join(left)}; end with '*': 'adamw'"
    )
  return {path: has[path] for path in found}


def _matches(rule: Rule, path: str, role: Role) -> bool:
  names = (role.module, f"{role.module}/{role.projection}", path)
  return any(fnmatch.fnmatchcase(name, rule.pattern) for name in names)


def _idle(
  rule: Rule,
  matching: list[str],
  able: list[str],
  has: Mapping[str, Rule],
  found: Mapping[str, Role],
) -> str:
  """Why a rule has no parameter."""
  if able:
    others = dict.fromkeys(str(has[p]) for p in able)
    return (
      f"rule {rule} claims nothing: {', '.join(able)} doubly claimed, and "
      f"earlier by rule {' and '.join(others)}; the first match wins"
    )
  if matching:
    return (
      f"rule {rule} matches only {', '.join(matching)}: a manifold takes "
      f"kernels (in, out) and stacks of them"
    )
  known = {role.module: 0 for role in found.values()}
  known |= {f"{r.module}/{r.projection}": 0 for r in found.values()}
  near = _near(rule.pattern, [*known, *found])
  there = "" if near else f"; there are {', '.join(known)}"
  return f"rule {rule} matches no parameter{near}{there}"


def _rule(pattern: Any, what: Any) -> Rule:
  if not isinstance(pattern, str):
    raise ValueError(f"rule {pattern!r}: a pattern should be text")
  options = {"manifold": what} if isinstance(what, str) else what
  if not isinstance(options, Mapping):
    raise ValueError(
      f"rule {pattern!r}: should be a manifold, adamw, or a mapping with "
      f"'manifold' and options; got {what!r}"
    )
  try:
    return _checked(pattern, dict(options))
  except ValueError as error:
    raise ValueError(f"rule {pattern!r}: {error}") from None


def _checked(pattern: str, options: dict[str, Any]) -> Rule:
  if "manifold" not in options:
    raise ValueError(f"lacks 'manifold', has {', '.join(options) or 'nothing'}")
  name = options.pop("manifold")
  _require_name("manifold", name, (*manifolds.MANIFOLDS, ADAMW))
  allowed = OF_ALL if name == ADAMW else (*OF_ALL, *OF_MANIFOLDS)
  allowed = (*allowed, *OF_ONE[name]) if name in OF_ONE else allowed
  for option in options:
    _require_name(f"option of {name}", option, allowed)
  given = {k: check_option(k, v) for k, v in options.items() if v is not None}
  rule = Rule(pattern, name, **given)
  if name == ADAMW:
    return rule
  manifold = make_manifold(name, retraction=rule.retraction, c=rule.c)
  if rule.weight_decay and not manifold.cone:
    raise ValueError(
      f"weight decay {rule.weight_decay:g} leaves the manifold {name}, which "
      f"is no cone; euclidean and dgram are"
    )
  return rule


def _fused(value: Any) -> str | int | tuple[int, ...]:
  if isinstance(value, str):
    _require_name("fused", value, ("split", "whole"))
    return value
  sizes = value if isinstance(value, (list, tuple)) else (value,)
  whole = [isinstance(s, int) and not isinstance(s, bool) for s in sizes]
  if not sizes or not all(whole) or min(sizes) < 1:
    raise ValueError(
      f"fused {value!r} is none of split, whole, a number of matrices, their "
      f"sizes"
    )
  return tuple(sizes) if isinstance(value, (list, tuple)) else value


def _require_name(what: str, value: Any, names: Collection[str]) -> None:
  if not isinstance(value, str) or value not in names:
    raise ValueError(
      f"{what} {value!r} is none of {', '.join(names)}"
      f"{_near(str(value), names)}"
    )


def _near(name: str, names: Iterable[str]) -> str:
  near = difflib.get_close_matches(name, list(names), 1)
  return f"; did you mean {near[0]}?" if near else ""
