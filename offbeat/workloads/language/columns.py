"""The columns of a completion on the log. The rows of a group stand side by side and share its oldest version.

prompt_ids      what the model was given            completion_ids  what it wrote, the end token included
logprobs        of each written token, under the distribution that it was really sampled from
token_versions  policy version that sampled each token
reward          weighted sum, NaN where no reward could be had      rewards  of each function
"""

import pyarrow as pa

from offbeat.trajectory import column, ragged, trajectory_schema

STOPPED, CUT = 0, 1  # finish: ended by itself or by a stop text; cut at max_new_tokens


def language_schema() -> pa.Schema:
    """Columns of completions of a language model."""
    return trajectory_schema(
        [
            column("group_id", pa.int64()),
            column("group_size", pa.int32()),
            column("prompt_index", pa.int64()),
            ragged("prompt_ids", pa.int32()),
            ragged("completion_ids", pa.int32()),
            ragged("logprobs", pa.float32(), finite=True, along="completion_ids"),
            ragged("token_versions", pa.int64(), along="completion_ids"),
            column("finish", pa.uint8()),
            column("reward", pa.float32()),
            ragged("rewards", pa.float32()),
        ]
    )
