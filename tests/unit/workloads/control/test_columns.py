"""The schema of control trajectories."""

import numpy as np
import pyarrow as pa
import pytest

from offbeat.errors import ContractViolation
from offbeat.trajectory import RecordHeaders, TrajectoryBatch, column_shape, decode, encode
from offbeat.workloads.control.columns import Box, Discrete, control_schema


def shapes(schema: pa.Schema) -> dict[str, tuple[tuple[int, ...] | None, bool]]:
    return {field.name: (column_shape(field), field.metadata[b"finite"] == b"1") for field in schema}


def test_flat_discrete_schema_has_the_documented_columns():
    schema = control_schema(observation_shape=(4,), observation_dtype="float32", action=Discrete(n=2), unroll_length=3)
    assert shapes(schema) == {
        "min_version": ((), False),
        "max_version": ((), False),
        "finished_at_ns": ((), False),
        "observations": ((4, 4), True),
        "actions": ((3,), False),
        "rewards": ((3,), True),
        "logprobs": ((3,), True),
        "flags": ((3,), False),
        "final_observations": (None, True),
        "episode_returns": (None, False),
        "episode_lengths": (None, False),
    }
    assert schema.field("actions").type.value_type == pa.int32()
    assert schema.field("flags").type.value_type == pa.uint8()


def test_image_box_schema_stores_bytes_and_flattened_actions():
    action = Box(shape=(2, 3), low=(-1.0,) * 6, high=(1.0,) * 6)
    schema = control_schema(observation_shape=(8, 8, 3), observation_dtype="uint8", action=action, unroll_length=5)
    found = shapes(schema)
    assert found["observations"] == ((6, 8, 8, 3), False)
    assert found["final_observations"] == (None, False)
    assert found["actions"] == ((5, 6), True)
    assert schema.field("observations").type.value_type == pa.uint8()
    assert schema.field("actions").type.value_type == pa.float32()


def one_row(reward: float) -> tuple[pa.Schema, TrajectoryBatch]:
    schema = control_schema(observation_shape=(1,), observation_dtype="float32", action=Discrete(n=2), unroll_length=2)
    arrays = {
        "min_version": [0],
        "max_version": [0],
        "finished_at_ns": [1],
        "observations": np.zeros((1, 3, 1)),
        "actions": np.zeros((1, 2)),
        "rewards": np.full((1, 2), reward),
        "logprobs": np.zeros((1, 2)),
        "flags": np.zeros((1, 2)),
        "final_observations": [[]],
        "episode_returns": [[]],
        "episode_lengths": [[]],
    }
    return schema, TrajectoryBatch.from_arrays(schema, arrays)


def test_a_record_goes_round_and_a_nan_reward_is_refused():
    for reward, refused in ((1.0, False), (float("nan"), True)):
        schema, batch = one_row(reward)
        headers, payload = encode(batch, run_id="r", generator=0, incarnation=0, sequence=0, created_at_ns=0)
        if refused:
            with pytest.raises(ContractViolation, match="rewards"):
                decode(RecordHeaders.parse(headers), payload, schema)
        else:
            assert decode(RecordHeaders.parse(headers), payload, schema).numpy("rewards").tolist() == [[1.0, 1.0]]
