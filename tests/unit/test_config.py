"""What a run configuration accepts, and what it says to what it does not."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from offbeat.config import (
    GrpoConfig,
    RunConfig,
    all_keys,
    config_changes,
    config_digest,
    dump_config,
    load_config,
    parse_config,
)
from offbeat.config.keys import sections_of
from offbeat.errors import ConfigError

KINDS = {"control": ("control", "appo"), "language": ("language", "grpo")}  # of work, each with its algorithm
BY_KIND = ("workload.", "training.algorithm.")  # Sections that differ.


def fields_of(model: type[BaseModel], kind: str, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field
        many = get_origin(field.annotation) is tuple
        sections = sections_of(field.annotation)
        for section in sections:
            if len(sections) == 1 or section.model_fields["kind"].default in KINDS[kind]:
                yield from fields_of(section, kind, f"{prefix}{name}.{'0.' * many}")


def nested(key: str, value: Any, kind: str = "control") -> dict[str, Any]:
    """The configuration that holds this key alone, beside the kind of work and of algorithm."""
    for part in reversed(key.split(".")):
        value = [value] if part.isdigit() else {part: value}
    data = dict(value)
    if kind == "language":
        data["workload"] = {"kind": "language"} | data.get("workload", {})
        data["training"] = {"algorithm": {"kind": "grpo"}} | data.get("training", {})
        if isinstance(data["training"]["algorithm"], dict):
            data["training"]["algorithm"] = {"kind": "grpo"} | data["training"]["algorithm"]
    return data


def value_of(config: RunConfig, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(data: Mapping[Any, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    return str(caught.value)


ALL_FIELDS = [
    (kind, key, field)
    for kind in KINDS
    for key, field in fields_of(RunConfig, kind)
    if kind == "control" or key.startswith(BY_KIND)
]
BOUNDED = [part for part in ALL_FIELDS if part[2].annotation in (int, float, int | None, float | None)]


def bounds(field: FieldInfo) -> dict[str, float]:
    names = {annotated_types.Ge: "ge", annotated_types.Gt: "gt", annotated_types.Le: "le", annotated_types.Lt: "lt"}
    return {name: getattr(part, name) for kind, name in names.items() for part in field.metadata if type(part) is kind}


def test_the_empty_configuration_is_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, ""), environ={}) == RunConfig()


@pytest.mark.parametrize(("kind", "key", "field"), ALL_FIELDS, ids=[f"{kind}-{key}" for kind, key, _ in ALL_FIELDS])
def test_every_key_has_a_default_and_a_description(kind: str, key: str, field: FieldInfo) -> None:
    assert not field.is_required(), key
    assert field.description, key


@pytest.mark.parametrize(("kind", "key", "field"), BOUNDED, ids=[f"{kind}-{key}" for kind, key, _ in BOUNDED])
def test_every_number_has_a_bound_that_holds(kind: str, key: str, field: FieldInfo) -> None:
    limits = bounds(field)
    assert limits, f"{key} has no bound"
    beyond = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    for name, limit in limits.items():
        assert f"{key}: got " in fault(nested(key, limit + beyond[name], kind))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_number_is_infinite(value: float) -> None:
    for kind, key, field in BOUNDED:
        if field.annotation in (float, float | None):
            assert key in fault(nested(key, value, kind))


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("trainig", "training"),
        ("sed", "seed"),
        ("training.batchsize", "batch_size"),
        ("training.max_step", "max_steps"),
        ("training.gradient_clipping", "gradient_clip"),
        ("training.algorithm.lerning_rate", "learning_rate"),
        ("workload.policy.hidden_size", "hidden_sizes"),
        ("workload.env", "env_id"),
        ("strategy.num_worker", "num_workers"),
        ("strategy.checkpoint_frequency", "checkpoint_freq"),
    ],
)
def test_a_misspelt_key_names_the_nearest(misspelt: str, meant: str) -> None:
    message = fault(nested(misspelt, 1))
    said = f"{misspelt}: unknown key; did you mean "
    assert meant in message.partition(said)[2].rstrip("?").split(" or ")


def test_the_beginning_of_keys_names_them_before_an_equal_one_elsewhere() -> None:
    message = fault({"workload": {"kind": "language"}, "training": {"algorithm": {"kind": "grpo", "clip": 0.2}}})
    assert message.endswith("training.algorithm.clip: unknown key; did you mean clip_low or clip_high?")


def test_a_key_in_the_wrong_section_names_its_own() -> None:
    keys = [key for key, _ in fields_of(RunConfig, "control") if not sections_of(_.annotation)]
    sections = {key.rpartition(".")[0] for key in keys}
    homes: dict[str, set[str]] = {}
    for key in keys:
        homes.setdefault(key.rpartition(".")[2], set()).add(key)
    for word, right in homes.items():
        for section in sections:
            wrong = f"{section}.{word}" if section else word
            if wrong not in all_keys():
                message = fault(nested(wrong, 1))
                assert any(message.endswith(f"did you mean {key}?") for key in right), message


@pytest.mark.parametrize("key", ["workload.sampling.temperature", "workload.model", "training.algorithm.clip_low"])
def test_a_key_of_another_kind_says_so(key: str) -> None:
    assert "unknown key of kind" in fault(nested(key, 1))
    assert "it belongs to another" in fault(nested(key, 1))


def test_an_unknown_kind_names_the_known_ones() -> None:
    message = fault({"workload": {"kind": "langage"}})
    assert "workload.kind: got 'langage'; expected one of 'control', 'language'" in message


def test_a_section_in_the_wrong_place_names_its_own() -> None:
    assert "did you mean training.algorithm?" in fault({"algorithm": {}})
    assert "did you mean workload.policy?" in fault({"training": {"policy": {}}})


def test_a_key_like_no_other_lists_the_section() -> None:
    assert "valid keys here: kind, codec, retention_s, max_record_bytes" in fault({"log": {"zzz": 1}})


def test_every_fault_is_named_at_once() -> None:
    message = fault({"seed": -1, "training": {"batchsize": 1, "max_steps": 0}, "workload": {"num_envs": "many"}})
    assert message.splitlines()[0].endswith("4 faults")
    for key in (
        "seed: got -1",
        "training.batchsize: unknown",
        "training.max_steps: got 0",
        "workload.num_envs: got 'many'",
    ):
        assert key in message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"training": 5}, "training: got 5"),
        ({1: 2}, "Keys should be strings"),
        ({"workload": {"kind": "cooking"}}, "workload.kind: got 'cooking'"),
        ({"workload": {"env_fn": "no_colon"}}, "workload.env_fn: got 'no_colon'"),
        ({"name": "Has Spaces"}, "name: got 'Has Spaces'"),
        ({"training": {"batch_size": 8, "batch_size_min": 9}}, "batch_size 8 is outside batch_size_min 9"),
        ({"training": {"batch_size": 8, "batch_size_max": 7}}, "batch_size 8 is outside"),
        ({"training": {"batch_size": 8, "buffer_capacity": 7}}, "buffer_capacity 7 is below the largest batch of 8"),
    ],
)
def test_a_wrong_value_says_what_was_got(data: dict[Any, Any], said: str) -> None:
    assert said in fault(data)


def test_names_that_operators_know_are_accepted(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            """
            training: {batch_size: 128, max_steps: 50, reward_fn: "my.rewards:exact", gradient_clip: 0.5}
            strategy: {num_workers: 1, checkpoint_freq: 10}
            """,
        ),
        environ={},
    )
    training, strategy = config.training, config.strategy
    assert (training.batch_size, training.max_steps, training.gradient_clip) == (128, 50, 0.5)
    assert (training.reward_fn, strategy.num_workers, strategy.checkpoint_freq) == ("my.rewards:exact", 1, 10)


@pytest.mark.parametrize(
    ("variable", "key", "text", "value"),
    [
        ("BATCH_SIZE", "training.batch_size", "256", 256),
        ("BUFFER_CAPACITY", "training.buffer_capacity", "9000", 9000),
        ("SYNC_INTERVAL", "training.sync_interval", "2.5", 2.5),
        ("GRADIENT_CLIP", "training.gradient_clip", "5e-1", 0.5),
    ],
)
def test_environment_variables_stand_for_keys(tmp_path: Path, variable: str, key: str, text: str, value: Any) -> None:
    config = load_config(write(tmp_path, ""), environ={variable: text})
    assert value_of(config, key) == value


def test_later_sources_win_file_environment_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "training: {batch_size: 1, gradient_clip: 1, max_steps: 1}")
    environ = {"BATCH_SIZE": "2", "GRADIENT_CLIP": "2"}
    training = load_config(path, ["training.batch_size=3"], environ=environ).training
    assert (training.max_steps, training.gradient_clip, training.batch_size) == (1, 2.0, 3)


def test_the_environment_of_the_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_SIZE", "77")
    assert load_config(write(tmp_path, "")).training.batch_size == 77


def test_a_wrong_environment_value_names_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.batch_size: got 'lots'"):
        load_config(write(tmp_path, ""), environ={"BATCH_SIZE": "lots"})


def test_overrides_are_strings_in_yaml_or_a_mapping(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    texts = ["seed=7", "workload.policy.hidden_sizes=[8, 8]", "workload.env_kwargs={gravity: 9.5}", "name=a-b"]
    values = {"seed": 7, "workload.policy.hidden_sizes": [8, 8], "workload.env_kwargs": {"gravity": 9.5}, "name": "a-b"}
    assert load_config(path, texts, environ={}) == load_config(path, values, environ={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed", "got 'seed', expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("seed=[1", "which is not a YAML value"),
        ("seed.deep=1", "seed is a value, not a section"),
        ("training.batchsize=3", "did you mean batch_size?"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "seed: 1"), [text], environ={})
    assert said in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("2.5e-4", 2.5e-4), ("1E-2", 1e-2), (".5e-1", 0.05)])
def test_floats_as_people_write_them(tmp_path: Path, text: str, value: float) -> None:
    path = write(
        tmp_path, f"workload: {{env_kwargs: {{scale: {text}}}}}\ntraining: {{algorithm: {{learning_rate: {text}}}}}"
    )
    config = load_config(path, [f"training.gradient_clip={text}"], environ={})
    assert config.workload.env_kwargs == {"scale": value}
    assert config.training.algorithm.learning_rate == value
    assert config.training.gradient_clip == value


def test_words_that_look_like_numbers_stay_words_where_quoted(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, 'workload: {env_kwargs: {a: "1e-3", b: nan, c: 12abc}}'), environ={})
    assert config.workload.env_kwargs == {"a": "1e-3", "b": "nan", "c": "12abc"}
    assert load_config(write(tmp_path, dump_config(config)), environ={}) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training: [", "is not YAML"),
        ("- a\n- b", "got a list, expected a mapping"),
        ("just words", "got a str, expected a mapping"),
        ("seed: 1\nseed: 2", "key 'seed' stands twice"),
        ("training: {max_steps: 1}\ntraining: {batch_size: 1}", "key 'training' stands twice"),
        ("seed: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("a: *missing", "is not YAML"),
    ],
)
def test_faults_of_the_file_itself(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text), environ={})
    assert said in str(caught.value)
    assert "config.yaml" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*nowhere\.yaml: No such file"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(binary)


def test_a_dumped_configuration_loads_equal(tmp_path: Path) -> None:
    config = parse_config(
        {
            "seed": 3,
            "workload": {"env_id": "Pendulum-v1", "env_kwargs": {"g": 9.81, "deep": {"a": [1, "x"]}, "empty": {}}},
            "training": {"algorithm": {"learning_rate": 3e-5}, "batch_size": 7, "batch_size_max": 9},
            "evaluation": {"min_return": -200.5},
        }
    )
    again = load_config(write(tmp_path, dump_config(config)), environ={})
    assert again == config
    assert config_digest(again) == config_digest(config)


def test_the_digest_follows_every_value() -> None:
    digests = {config_digest(parse_config(data)) for data in ({}, {"seed": 1}, {"training": {"gradient_clip": 0.5}})}
    assert len(digests) == 3
    assert all(len(digest) == 64 for digest in digests)


def test_changes_name_the_key_with_old_and_new() -> None:
    old = parse_config({"seed": 1, "workload": {"env_kwargs": {"g": 1}}})
    new = parse_config({"seed": 2, "workload": {"env_kwargs": {}}, "training": {"max_steps": 5}})
    assert config_changes(old, new) == {
        "seed": (1, 2),
        "training.max_steps": (10000, 5),
        "workload.env_kwargs": (None, {}),
        "workload.env_kwargs.g": (1, None),
    }
    assert config_changes(old, old) == {}


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().training.batch_size = 3  # type: ignore[misc]


def test_the_schema_that_forms_are_made_from_is_json() -> None:
    schema = json.loads(json.dumps(RunConfig.model_json_schema()))
    assert schema["$defs"]["TrainingConfig"]["properties"]["max_steps"]["description"]


def test_each_kind_of_work_has_its_algorithm() -> None:
    assert parse_config({"workload": {"kind": "language"}}).training.algorithm.kind == "grpo"
    changed = parse_config({"workload": {"kind": "language"}, "training": {"algorithm": {"clip_low": 0.1}}})
    assert changed.training.algorithm == GrpoConfig(clip_low=0.1)
    message = fault({"training": {"algorithm": {"kind": "grpo"}}})
    assert "training.algorithm.kind: got 'grpo'; work of kind control needs 'appo'" in message


def test_a_batch_never_cuts_a_group() -> None:
    data = {"workload": {"kind": "language", "group_size": 8}, "training": {"batch_size": 100}}
    assert "training.batch_size: got 100; expected a multiple of workload.group_size 8" in fault(data)


@pytest.mark.parametrize(
    ("workload", "algorithm", "said"),
    [
        ({"group_size": 1}, {}, "workload.group_size: got 1; grpo advantages compare within a group"),
        ({"group_size": 1}, {"advantages": "rloo"}, "rloo advantages compare within a group"),
        ({"model": {"made": {"hidden_size": 33, "num_heads": 11}}}, {}, "got an odd size for each head"),
        ({"model": {"dtype": "float16", "warm_up": {"steps": 1}}}, {}, "dtype: got 'float16' with a warm-up"),
    ],
)
def test_language_settings_that_cannot_work_are_refused(
    workload: dict[str, Any], algorithm: dict[str, Any], said: str
) -> None:
    data = {"workload": {"kind": "language"} | workload, "training": {"algorithm": {"kind": "grpo"} | algorithm}}
    assert said in fault(data)


def test_single_completions_have_a_whole_batch_to_be_compared_with() -> None:
    data = {
        "workload": {"kind": "language", "group_size": 1},
        "training": {"algorithm": {"kind": "grpo", "advantages": "reinforce++"}},
    }
    assert parse_config(data).group_size == 1


@pytest.mark.parametrize("strategy", [{"num_workers": 2}, {"sharding": "full"}])
def test_trainer_processes_need_work_that_can_be_shared(strategy: dict[str, Any]) -> None:
    assert re.search(r"trains in 1|nobody is there to share with", fault({"strategy": strategy}))
