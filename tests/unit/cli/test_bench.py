import sys

import pytest

from offbeat.config import load_config


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.cli.bench.FOLDER", tmp_path)
    for name, code in {"speed": 0, "worth": 3}.items():
        (tmp_path / f"{name}.py").write_text(
            f'"""How much {name} there is.\n\nMore."""\nimport click\n'
            f'def main(argv):\n    click.echo(f"{name} {{argv}}")\n    return {code}\n'
        )
    return tmp_path


def test_benchmarks_are_listed_with_their_first_line(invoke, scripts):
    assert invoke("bench", "--list").stdout.splitlines() == [
        "speed           How much speed there is.",
        "worth           How much worth there is.",
    ]


def test_one_runs_with_its_own_arguments(invoke, scripts):
    result = invoke("bench", "speed", "--seconds", 3)
    assert (result.exit_code, result.stdout) == (0, "speed ['--seconds', '3']\n")


def test_all_run_when_none_is_named(invoke, scripts):
    result = invoke("bench")
    assert (result.exit_code, result.stdout) == (3, "speed []\nworth []\n")


def test_an_unknown_one_names_the_known(invoke, scripts):
    result = invoke("bench", "spead")
    assert result.exit_code == 2
    assert "expected one of speed, worth" in result.stderr


def test_what_benchmarks_share_is_no_benchmark(invoke, scripts):
    (scripts / "__init__.py").write_text('"""A package."""\n')
    (scripts / "parts.py").write_text('"""Parts."""\n\ndef half(argv):\n    return 1\n')
    assert "parts" not in invoke("bench", "--list").stdout
    assert invoke("bench", "parts").exit_code == 2


def test_without_a_source_tree_there_are_none(invoke, tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.cli.bench.FOLDER", tmp_path / "none")
    assert invoke("bench").exit_code == 2


def test_the_benchmarks_of_the_source_tree_load_and_say_what_they_take(invoke, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    listed = [line.split()[0] for line in invoke("bench", "--list").stdout.splitlines()]
    assert listed == ["language", "throughput", "waiting"]
    for name in listed:
        result = invoke("bench", name, "--help")
        assert result.exit_code == 0
        assert f"offbeat bench {name}" in result.stdout


@pytest.mark.parametrize("name", ["language", "throughput", "waiting"])
def test_the_settings_of_each_fit_the_deployment_that_it_changes(monkeypatch, name):
    monkeypatch.setattr("sys.path", [*sys.path])
    benchmark = pytest.importorskip(f"benchmarks.{name}")
    settled = load_config(benchmark.CONFIG, benchmark.SETTINGS, environ={})
    assert settled.generator.num_generators >= 1
