"""Who may import whom, read from the source."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = sorted(
  [
    *ROOT.glob("geom/**/*.py"),
    *ROOT.glob("experiments/**/*.py"),
    *ROOT.glob("configs/**/*.py"),
    ROOT / "launch.py",
  ]
)

# What each part may import of the project; a part may always import itself.
MAY_IMPORT = {
  "geom": set(),
  "geom.linalg": set(),
  "geom.refine": {"geom.linalg"},
  "geom.polar": {"geom.linalg"},
  "geom.manifolds": {"geom.linalg", "geom.polar"},
  "geom.manifold_contract": {"geom.linalg", "geom.manifolds", "geom.polar"},
  "geom.record": set(),
  "geom.config": set(),
  "geom.conditions": {"geom.config"},
  "geom.config_sections": {"geom.config", "geom.data", "geom.optim"},
  "geom.roles": set(),
  "geom.models": set(),
  "geom.data": set(),
  "geom.optim": {
    "geom.linalg",
    "geom.manifolds",
    "geom.polar",
    "geom.roles",
  },
  "geom.probes": {"geom.linalg", "geom.refine", "geom.roles"},
  "geom.report": {"geom.record"},
  "geom.weights": {"geom.data", "geom.models"},
  "geom.launch": {"geom", "geom.config", "geom.record"},
  "geom.train": {
    "geom.linalg",
    "geom.record",
    "geom.roles",
    "geom.models",
    "geom.data",
    "geom.optim",
    "geom.probes",
  },
  "experiments": {
    "geom.conditions",
    "geom.config",
    "geom.config_sections",
    "geom.data",
    "geom.linalg",
    "geom.manifolds",
    "geom.models",
    "geom.optim",
    "geom.polar",
    "geom.probes",
    "geom.record",
    "geom.refine",
    "geom.report",
    "geom.roles",
    "geom.train",
    "geom.weights",
  },
  "configs": set(),
  "launch": {
    "experiments",
    "geom.config",
    "geom.data",
    "geom.launch",
    "geom.record",
    "geom.train",
  },
}


def module_of(path: pathlib.Path) -> str:
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(p for p in parts if p != "__init__")


def part_of(module: str) -> str:
  """The longest entry of `MAY_IMPORT` that the module is in."""
  found = [p for p in MAY_IMPORT if module == p or module.startswith(f"{p}.")]
  return max(found, key=len)


def imports(path: pathlib.Path) -> set[str]:
  """Modules that a file imports, `from a import b` counted as `a.b` too."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}: relative import"
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
  return found


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_follow_the_directions(path):
  module = module_of(path)
  part = part_of(module)
  for name in imports(path):
    if name.split(".")[0] in ("geom", "experiments", "configs", "launch"):
      other = part_of(name)
      assert other == part or other in MAY_IMPORT[part], (
        f"{module} imports {name}: {part} may import {sorted(MAY_IMPORT[part])}"
      )


@pytest.mark.parametrize(
  "path", sorted(ROOT.glob("configs/*.py")), ids=module_of
)
def test_configs_import_only_ml_collections_and_each_other(path):
  found = {n.split(".")[0] for n in imports(path)}
  assert found <= {"ml_collections", "configs"}


@pytest.mark.parametrize(
  "path", sorted(ROOT.glob("experiments/*.py")), ids=module_of
)
def test_experiments_do_not_import_each_other(path):
  others = [n for n in imports(path) if n.startswith("experiments.")]
  kin = f"experiments.{path.stem.split('_')[0]}_"
  assert all(n.startswith(kin) for n in others)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_no_default_hides_a_config_key(path):
  assert not re.search(r"\b(config|c|cfg)\.get\(", path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_every_module_says_what_it_is(path):
  assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize(
  "path", sorted(ROOT.glob("geom/*/__init__.py")), ids=module_of
)
def test_packages_re_export_nothing(path):
  """So that every public name has one import path."""
  assert len(ast.parse(path.read_text()).body) == 1


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_no_file_is_named_for_nothing(path):
  assert path.stem not in ("utils", "helpers", "common", "misc")
