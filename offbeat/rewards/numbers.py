"""Numbers in text: the last one of an answer, in one normal form, so that `1,000`, `$1000.` and `1000.00` are equal."""

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

# A sign belongs to the number only where no other number or word ends: `5-3` holds 5 and 3.
NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d+)?%?")
MAX_DIGITS = 400  # A longer one is no answer, and exact arithmetic on it would take for ever.


def last_number(text: str) -> Fraction | None:
    """The last number that stands in a text, exactly; None when there is none. A percentage is a hundredth."""
    for found in reversed(list(NUMBER.finditer(text))):
        number = parse_number(found.group())
        if number is not None:
            return number
    return None


def parse_number(text: str) -> Fraction | None:
    """The number that a text is, with or without thousands separators, a fraction or a percent sign; None if none."""
    plain = text.strip().replace(",", "").replace("−", "-").replace(" ", "")
    if not plain or len(plain) > MAX_DIGITS:
        return None
    scale = 100 if plain.endswith("%") else 1
    numerator, _, denominator = plain.rstrip("%").partition("/")
    try:
        value = Fraction(Decimal(numerator)) / Fraction(Decimal(denominator or "1"))
    except (InvalidOperation, ValueError, OverflowError, ZeroDivisionError):
        return None
    return value / scale
