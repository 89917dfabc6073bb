"""YAML as people mean it: `1e-3` is a number, and a key that stands twice is an error, not a silent choice."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

# YAML 1.1 wants a dot in a float's mantissa and a sign in its exponent; people write 1e-3 and 2.5e6.
FLOAT_TAG = "tag:yaml.org,2002:float"
EXPONENT_FLOAT = re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")


class _Reader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As the safe loader does, once no key stands twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.value != "<<":
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} stands twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Writer(yaml.SafeDumper):
    pass


for _side in (_Reader, _Writer):
    _side.add_implicit_resolver(FLOAT_TAG, EXPONENT_FLOAT, list("-+.0123456789"))


def read_yaml(text: str) -> Any:
    """The value that the text stands for; raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Reader)  # a SafeLoader: builds plain values only


def write_yaml(data: Any) -> str:
    """The text that `read_yaml` reads back to an equal value."""
    return yaml.dump(data, Dumper=_Writer, sort_keys=False)
