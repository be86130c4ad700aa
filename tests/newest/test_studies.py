"""The engine of the studies: data, splits, keys, store, processes, limits."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import betabinom

from mapie_claps.benchmarks.tables import read_table
from mapie_claps.studies import data, runner, store
from mapie_claps.studies.scoring import SplitSize, coverage_limits, score_intervals


def write_csv(path, n=60, header="a,b,price", cells=None):
    rng = np.random.default_rng(0)
    lines = [f"{a},{b},{c}" for a, b, c in rng.normal(size=(n, 3))]
    for i, text in (cells or {}).items():
        lines[i] = text
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


# --- scores, limits, splits


def test_interval_score_by_hand():
    lower, upper = np.array([0.0, 0.0, 0.0]), np.array([2.0, 2.0, 2.0])
    y = np.array([1.0, -0.5, 3.0])
    # 2, 2 + 10 · 0.5, 2 + 10 · 1
    found = score_intervals(y, lower, upper, alpha=0.2)
    assert found == pytest.approx(
        {"coverage": 1 / 3, "width": 2.0, "interval_score": 21 / 3}
    )


def test_coverage_limits_of_uniform_counts():
    # n_cal = 1, α = 0.5: k = 1 and BB(n; 1, 1) is uniform on 0 … n. The sum of two
    # uniforms on 0 … 3 is triangular on 0 … 6 with P(0) = 1/16 and P(≤ 1) = 3/16.
    sizes = [SplitSize(1, 3)] * 2
    assert coverage_limits(sizes, 0.5, probability=0.95) == (0.0, 1.0)
    assert coverage_limits(sizes, 0.5, probability=1 - 2 / 16) == (1 / 6, 5 / 6)
    assert coverage_limits(sizes, 0.5, probability=1 - 5.9 / 16) == (1 / 6, 5 / 6)
    assert coverage_limits(sizes, 0.5, probability=1 - 6 / 16) == (2 / 6, 4 / 6)


def test_coverage_limits_agree_with_simulation():
    rng = np.random.default_rng(0)
    n_cal, n_test, k = 40, 30, 37
    draws = betabinom.rvs(n_test, k, n_cal + 1 - k, size=(200_000, 4), random_state=rng)
    expected = np.quantile(draws.sum(axis=1), [0.01, 0.99]) / (4 * n_test)
    limits = coverage_limits([SplitSize(n_cal, n_test)] * 4, 0.1, probability=0.98)
    np.testing.assert_allclose(limits, expected, atol=1.01 / (4 * n_test))


def test_coverage_is_certain_where_the_rank_exceeds_the_scores():
    assert coverage_limits([SplitSize(5, 7)], 0.1) == (1.0, 1.0)


def test_split_is_a_seeded_partition_of_at_most_max_rows():
    table = data.Dataset("d", np.arange(200.0)[:, None], np.arange(200.0))
    split = data.split_rows(table, 3, max_rows=100)
    parts = [split.y_train, split.y_cal, split.y_test]
    assert [len(p) for p in parts] == [60, 20, 20]
    assert len(np.unique(np.concatenate(parts))) == 100
    np.testing.assert_array_equal(split.X_cal[:, 0], split.y_cal)
    again, other = (data.split_rows(table, seed, max_rows=100) for seed in (3, 4))
    np.testing.assert_array_equal(split.y_test, again.y_test)
    assert not np.array_equal(split.y_test, other.y_test)
    even = data.split_rows(table, 3, max_rows=100, calibration_share=0.4)
    assert [len(p) for p in even[1::2]] == [40, 40, 20]
    np.testing.assert_array_equal(even.y_test, split.y_test)


# --- data


def test_target_need_not_be_last(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    first, last = data.load_csv(path, "a"), data.load_csv(path)
    np.testing.assert_array_equal(first.X[:, 1], last.y)
    np.testing.assert_array_equal(last.X[:, 0], first.y)
    assert (first.target, last.target) == ("a", "price")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({3: "1,,2"}, r"missing or infinite value '' in row 4, column 'b'.*SimpleImp"),
        ({0: "1,inf,2"}, r"infinite value 'inf' in row 1, column 'b'"),
        ({2: "red,1,2"}, r"the text 'red' in row 3, column 'a'.*OneHotEncoder"),
        ({2: "1_000,1,2"}, r"the text '1_000' in row 3, column 'a'"),
        ({2: "1,2"}, r"Got 2 cells in row 3 of own.csv, but the header has 3"),
    ],
)
def test_bad_cells_are_named_with_the_remedy(cells, message, tmp_path):
    path = write_csv(tmp_path / "own.csv", cells=cells)
    with pytest.raises(ValueError, match=message):
        data.load_csv(path)


def test_bad_files_are_named(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    with pytest.raises(ValueError, match=r"target='cost'.*a, b, price"):
        data.load_csv(path, "cost")
    short = write_csv(tmp_path / "short.csv", n=49)
    with pytest.raises(ValueError, match="Got 49 rows in short"):
        data.load_csv(short)
    constant = write_csv(tmp_path / "c.csv", cells={i: f"{i},1,7" for i in range(60)})
    with pytest.raises(ValueError, match="1 distinct values of 'price'"):
        data.load_csv(constant)


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = write_csv(tmp_path / "own.csv", header="price,b,price")
    for read in (lambda: data.load_csv(path, "price"), lambda: read_table(path)):
        with pytest.raises(ValueError, match=r"'price' twice in own.csv.*1 and 3"):
            read()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({2: "1,2,3,4"}, "Got 4 cells in row 3 of own.csv, but the header has 3"),
        ({2: "1,2,"}, "Got 1 missing or infinite values in 'price', the target"),
        ({2: "1,2,dear"}, "Got 'price', the last column of own.csv, as target"),
    ],
)
def test_tables_with_gaps_and_text_have_a_target_of_numbers(cells, message, tmp_path):
    path = write_csv(tmp_path / "own.csv", cells=cells)
    with pytest.raises(ValueError, match=message):
        read_table(path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"Got own.csv without rows"):
        read_table(path)


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    text = path.read_text().splitlines()
    text[4] = "\u00e9,1,2"
    path.write_bytes("\n".join(text).encode("latin1"))
    with pytest.raises(ValueError, match=r"0xe9 in line 5 of own.csv.*UTF-8.*iconv"):
        data.load_csv(path)


def test_a_file_in_utf16_is_named(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    path.write_text(path.read_text(), encoding="utf-16")
    with pytest.raises(ValueError, match="in line 1 of own.csv.*iconv -f utf-16 -t"):
        data.load_csv(path)


def test_a_file_that_is_no_csv_is_named(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("a,b\n" + "1" * 200_000 + ",2\n")
    with pytest.raises(ValueError, match=r"own.csv, which cannot be read as CSV"):
        data.load_csv(path)


def test_text_and_gaps_make_a_data_frame(tmp_path):
    cells = {0: "red,1,2", 1: "red,,3"}
    path = write_csv(tmp_path / "own.csv", cells=cells)
    table = data.load_csv(path, text=True)
    assert table.X["a"].dtype == "category"
    assert table.X["b"].isna().tolist() == [False, True] + [False] * 58
    split = data.split_rows(table, seed=0)
    assert [len(part) for part in split] == [36, 36, 12, 12, 12, 12]
    pd.testing.assert_frame_equal(
        pd.concat([split.X_train, split.X_cal, split.X_test]).sort_index(), table.X
    )
    with pytest.raises(ValueError, match="missing or infinite value '' in row 2"):
        data.load_csv(write_csv(path, cells={1: "1,2,"}), text=True)


def test_hash_is_of_the_content(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    first = data.load_csv(path)
    numbers = np.loadtxt(path, delimiter=",", skiprows=1)
    again = tmp_path / "again.csv"
    np.savetxt(
        again, numbers, delimiter=" , ", header="A,B,C", comments="", fmt="%.20g"
    )
    assert data.load_csv(again).content_hash == first.content_hash
    assert data.load_csv(path, "a").content_hash != first.content_hash
    one_cell = data.load_csv(write_csv(path, cells={7: "1,2,3"}))
    assert one_cell.content_hash != first.content_hash
    words = [
        data.load_csv(write_csv(path, cells={0: f"{word},1,2"}), text=True).content_hash
        for word in ("red", "green")
    ]
    assert len({*words, first.content_hash}) == 3


# --- keys and store


def key(**changes):
    parts = {"data": {"name": "d"}, "split": {"seed": 0}, "method": {"name": "m"}}
    return store.run_key("study", **(parts | changes))


def line(found, **changes):
    return {"key": key(**changes), "rows": [{"found": found}]} | dict.fromkeys(
        ("seconds", "cpu_seconds"), 1.0
    )


def test_every_part_of_the_key_counts(tmp_path, monkeypatch):
    kept = store.Store(tmp_path)
    kept.add(line(1))
    assert store.identity(key()) in kept.by_key()
    others = [
        key(data={"name": "other"}),
        key(split={"seed": 1}),
        key(method={"name": "m", "size": 2}),
        key(uses_claps=False),
        store.run_key(
            "other", data={"name": "d"}, split={"seed": 0}, method={"name": "m"}
        ),
    ]
    monkeypatch.setitem(store.RESULTS_VERSION, "claps", 10**6)
    others.append(key())
    assert not {store.identity(k) for k in others} & set(kept.by_key())


def test_lines_cut_short_are_computed_again(tmp_path):
    kept = store.Store(tmp_path)
    kept.add(line(1))
    kept.add(line(2, split={"seed": 1}))
    text = kept.file.read_text()
    kept.file.write_text(text[:-20])
    assert [x["rows"][0]["found"] for x in kept.lines()] == [1]
    kept.add(line(3, split={"seed": 1}))
    assert [x["rows"][0]["found"] for x in kept.lines()] == [1, 3]


@pytest.mark.parametrize(
    "text",
    [
        "3",
        "[]",
        '{"dataset": "yacht", "seed": 0, "method": "claps"}',
        json.dumps(line(1) | {"rows": [1]}),
        json.dumps(line(1) | {"key": "k"}),
    ],
)
def test_lines_that_are_no_run_are_named(text, tmp_path):
    kept = store.Store(tmp_path)
    kept.add(line(1))
    with kept.file.open("a") as stream:
        stream.write(text + "\n")
    with pytest.raises(ValueError, match=r"line 2 of '.*runs.jsonl'.*Delete the line"):
        kept.lines()


def test_a_store_that_is_no_text_is_named(tmp_path):
    (tmp_path / "runs.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"runs.jsonl', which is not a text file"):
        store.Store(tmp_path).lines()


# --- runs


def found(seed, done):
    done.append(seed)
    if seed == 2:
        raise ArithmeticError("no luck")
    return [{"seed": seed}]


def plan(done, interrupt_at=None):
    def run(seed):
        if seed == interrupt_at:
            raise KeyboardInterrupt
        return found(seed, done)

    return [
        runner.Run(f"run {i}", key(split={"seed": i}), partial(run, i))
        for i in range(4)
    ]


def test_runs_go_on_after_interruption_and_failure(tmp_path):
    first, second, third = [], [], []
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        runner.run_missing(plan(first, interrupt_at=1), tmp_path)
    assert first == [0]
    (failure,) = runner.run_missing(plan(second), tmp_path)
    assert second == [1, 2, 3]
    assert str(failure) == "FAILED run 2: ArithmeticError: no luck\n"
    rows = runner.finished_rows(plan([]), tmp_path)
    assert rows == [{"seed": 0}, {"seed": 1}, {"seed": 3}]
    runner.run_missing(plan(third), tmp_path)
    assert third == [2]


def where(seed):
    import torch

    assert seed != 1, "no luck"
    return [{"pid": os.getpid(), "threads": torch.get_num_threads()}]


def test_runs_in_processes_of_one_thread(tmp_path):
    runs = [
        runner.Run(f"{i}", key(split={"seed": i}), partial(where, i)) for i in (0, 1)
    ]
    (failure,) = runner.run_missing(runs, tmp_path, jobs=2)
    assert failure.message.startswith("AssertionError: no luck")
    (row,) = runner.finished_rows(runs, tmp_path)
    assert row["pid"] != os.getpid()
    assert row["threads"] == 1


WORKERS = """
import functools, sys, time
from pathlib import Path
from mapie_claps.studies import runner, store

def wait(i):
    import os
    Path(sys.argv[1], f"{i}.pid").write_text(str(os.getpid()))
    time.sleep(600)
    return []

if __name__ == "__main__":
    key = functools.partial(store.run_key, "s", data={}, method={})
    runs = [runner.Run("", key(split={"seed": i}), functools.partial(wait, i))
            for i in range(2)]
    runner.run_missing(runs, Path(sys.argv[1]), jobs=2)
"""


def test_workers_end_when_the_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WORKERS)
    environment = os.environ | {"PYTHONPATH": str(Path(store.__file__).parents[2])}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        files = [tmp_path / "0.pid", tmp_path / "1.pid"]
        wait_until(lambda: all(f.exists() and f.read_text() for f in files))
        pids = [int(f.read_text()) for f in files]
        assert all(map(is_running, pids))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(is_running, pids)))


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that has ended stays until somebody asks for its exit code.
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().split()[2] != "Z"


# --- the command line


@pytest.mark.parametrize("package", ["benchmarks", "experiments"])
def test_help_loads_neither_torch_nor_scikit_learn(package):
    code = (
        "import sys\n"
        f"from mapie_claps.{package}.__main__ import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n"
        "    slow = {'torch', 'sklearn', 'scipy', 'mapie', 'pandas'}\n"
        "    print('loaded:', *slow & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "usage: python -m mapie_claps" in done.stdout
    assert done.stdout.endswith("loaded:\n")


def test_every_command_has_its_help(capsys):
    from mapie_claps.benchmarks.__main__ import COMMANDS, main

    for name in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert "--" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
