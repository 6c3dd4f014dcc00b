"""geom.data.fetch: the data folder, wheels by pip, replacing and locking.

pip is the real one; it looks in a folder of the test's instead of an index.
"""

import threading
import zipfile

import pytest

from geom.data import fetch

WHEEL = "tiny_data-1.2-py3-none-any.whl"


def write_wheel(path, content=b"data"):
  """A wheel that pip accepts, with one data file."""
  info = "tiny_data-1.2.dist-info"
  path.parent.mkdir(exist_ok=True)
  with zipfile.ZipFile(path, "w") as wheel:
    wheel.writestr("tiny_data/data.bin", content)
    wheel.writestr(
      f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.2"
    )
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
  return path


@pytest.fixture
def index(tmp_path, monkeypatch):
  """The only place where pip looks: a folder that holds tiny-data."""
  folder = tmp_path / "index"
  write_wheel(folder / WHEEL)
  monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
  return folder


@pytest.fixture
def sha256(index):
  return fetch.sha256_of(index / WHEEL)


def no_pip(*_):
  raise AssertionError("pip was run")


def test_data_dir_takes_the_flag_then_the_variable_then_the_cache(
  monkeypatch, tmp_path
):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setenv("GEOM_DATA_DIR", str(tmp_path / "variable"))
  assert fetch.data_dir("~/flag") == tmp_path / "home" / "flag"
  assert fetch.data_dir() == tmp_path / "variable"
  monkeypatch.setenv("GEOM_DATA_DIR", "")
  assert fetch.data_dir() == tmp_path / "cache" / "geom"
  monkeypatch.delenv("GEOM_DATA_DIR")
  monkeypatch.delenv("XDG_CACHE_HOME")
  assert fetch.data_dir() == tmp_path / "home" / ".cache" / "geom"
  assert list(tmp_path.iterdir()) == []


def test_an_error_is_one_line():
  assert str(fetch.DataError("a\n  b\nc")) == "a b c"


def test_a_wheel_is_fetched_once(index, sha256, tmp_path, monkeypatch):
  into = tmp_path / "new" / "into"
  wheel = fetch.fetch_wheel("tiny-data==1.2", sha256, into)
  assert wheel == into / WHEEL
  assert fetch.sha256_of(wheel) == sha256
  assert list(into.iterdir()) == [wheel]

  monkeypatch.setattr(fetch, "_pip_download", no_pip)
  assert fetch.fetch_wheel("tiny-data==1.2", sha256, into) == wheel
  assert fetch.find_wheel("Tiny.Data==1.2", sha256, into) == wheel
  assert fetch.find_wheel("tiny-data==1.3", sha256, into) is None
  assert fetch.find_wheel("tiny==1.2", sha256, into) is None


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_wheel_is_fetched_again(
  damage, index, sha256, tmp_path, capsys
):
  wheel = fetch.fetch_wheel("tiny-data==1.2", sha256, tmp_path / "into")
  capsys.readouterr()
  right = wheel.read_bytes()
  wrong = {"truncated": right[:-1], "altered": b"x" + right[1:]}[damage]
  wheel.write_bytes(wrong)
  assert fetch.find_wheel("tiny-data==1.2", sha256, wheel.parent) is None
  assert fetch.fetch_wheel("tiny-data==1.2", sha256, wheel.parent) == wheel
  assert wheel.read_bytes() == right
  said = capsys.readouterr().err.splitlines()
  assert [str(wheel) in line and "altered" in line for line in said] == [
    True,
    False,
  ]


def test_a_wheel_with_another_sha256_is_refused(index, sha256, tmp_path):
  write_wheel(index / WHEEL, content=b"something else")
  into = tmp_path / "into"
  with pytest.raises(fetch.DataError, match="refused: its sha256 is") as caught:
    fetch.fetch_wheel("tiny-data==1.2", sha256, into)
  assert sha256 in str(caught.value)
  assert list(into.iterdir()) == []


def test_what_pip_cannot_find_is_an_error_of_one_line(index, tmp_path):
  with pytest.raises(fetch.DataError, match=r"download tiny-data==9\.9: ERR"):
    fetch.fetch_wheel("tiny-data==9.9", "0", tmp_path / "into")


def test_pip_does_not_run_on(index, tmp_path, monkeypatch):
  monkeypatch.setattr(fetch, "_PIP_LIMIT_S", 0.01)
  with pytest.raises(fetch.DataError, match="took too long"):
    fetch.fetch_wheel("tiny-data==1.2", "0", tmp_path / "into")


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
  (tmp_path / "file").touch()
  into = tmp_path / "file" / "into"
  with pytest.raises(fetch.DataError, match=f"cannot keep .* in {into}"):
    fetch.fetch_wheel("tiny-data==1.2", "0", into)


def test_replacing_is_all_or_nothing(tmp_path):
  target = tmp_path / "target"
  with fetch.replacing(target) as temporary:
    temporary.write_text("old")
    assert not target.exists()
  assert target.read_text() == "old"

  with pytest.raises(KeyError), fetch.replacing(target) as temporary:
    temporary.write_text("half")
    raise KeyError
  assert target.read_text() == "old"
  assert list(tmp_path.iterdir()) == [target]


def test_a_lock_has_one_holder(tmp_path, capsys):
  order = []

  def second():
    with fetch.locked(tmp_path / "new" / "folder", "thing"):
      order.append("second")

  thread = threading.Thread(target=second)
  with fetch.locked(tmp_path / "new" / "folder", "thing"):
    thread.start()
    thread.join(timeout=0.2)
    order.append("first")
  thread.join(timeout=10)
  assert order == ["first", "second"]
  assert "preparing thing" in capsys.readouterr().err
