"""Which keys a store takes; the same rule for every backend."""

from offbeat.errors import StoreError

MAX_KEY_BYTES = 1024
MAX_PART_BYTES = 200

# Backends keep their own bookkeeping under this first part.
RESERVED = ".offbeat"


def check_key(key: str) -> str:
    """The key itself; raises StoreError for one that is empty, absolute, climbs out, or is too long."""
    parts = key.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts) or parts[0] == RESERVED:
        raise StoreError(
            f"store key: got {key!r}, expected 'part/part/...' without a leading, trailing or double '/', "
            f"without '.' or '..' as a part, not beginning with {RESERVED!r}"
        )
    if len(_encoded(key)) > MAX_KEY_BYTES or any(len(_encoded(part)) > MAX_PART_BYTES for part in parts):
        raise StoreError(
            f"store key: got {len(key)} characters beginning {key[:40]!r}, "
            f"expected at most {MAX_KEY_BYTES} bytes, {MAX_PART_BYTES} between two '/'"
        )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself, which may be empty or end anywhere in a key; raises StoreError as `check_key` does."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"store key: got {text!r}, expected text that UTF-8 can hold") from error
