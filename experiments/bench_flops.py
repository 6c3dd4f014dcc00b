"""Flops of the matrix products of a program, counted in its jaxpr."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.extend import core


class Products(NamedTuple):
  """What the matrix products of a program cost.

  Attributes:
    flops: a multiplication and an addition are two.
    unknown_loops: how many loops there are whose length is known only when
      they run; their bodies are counted once.
  """

  flops: float
  unknown_loops: int


def count(
  f: Callable[..., Any],
  *args: Any,
  branch: Callable[..., Products] = max,
) -> Products:
  """Of one call of `f`.

  LAPACK's work and what is done entry by entry is not counted.

  Args:
    f: a function of arrays.
    *args: arrays, or their shapes and types.
    branch: `max` or `min`: which branch of a `cond` counts.
  """
  return of_jaxpr(jax.make_jaxpr(f)(*args).jaxpr, branch)


def of_jaxpr(jaxpr: Any, branch: Callable[..., Products] = max) -> Products:
  """Of a program that is traced already; see `count`."""
  found = [_of_equation(equation, branch) for equation in jaxpr.eqns]
  return _sum(found)


def _of_equation(equation: Any, branch: Callable[..., Products]) -> Products:
  name, params = equation.primitive.name, equation.params
  if name == "dot_general":
    return Products(_dot_general(equation), 0)
  if name == "cond":
    return branch(of_jaxpr(b.jaxpr, branch) for b in params["branches"])
  if name == "custom_linear_solve":
    # The other programs of it are for derivatives.
    return of_jaxpr(params["jaxprs"].solve.jaxpr, branch)
  inner = _sum([of_jaxpr(jaxpr, branch) for jaxpr in _jaxprs(params)])
  if name == "scan":
    return inner._replace(flops=params["length"] * inner.flops)
  if name == "while" and inner.flops:
    return inner._replace(unknown_loops=inner.unknown_loops + 1)
  return inner


def _dot_general(equation: Any) -> float:
  (contracted, _), _ = equation.params["dimension_numbers"]
  a, out = equation.invars[0].aval, equation.outvars[0].aval
  return 2.0 * math.prod(out.shape) * math.prod(a.shape[i] for i in contracted)


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
  """The programs that an equation has in its parameters."""
  for value in jax.tree.leaves(params, is_leaf=_is_jaxpr):
    if isinstance(value, core.ClosedJaxpr):
      yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
      yield value


def _is_jaxpr(x: Any) -> bool:
  return isinstance(x, (core.ClosedJaxpr, core.Jaxpr))


def _sum(found: list[Products]) -> Products:
  return Products(
    sum(x.flops for x in found), sum(x.unknown_loops for x in found)
  )
