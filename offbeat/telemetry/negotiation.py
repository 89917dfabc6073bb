"""Which form of the metrics a client wants, read from its Accept header (RFC 9110, section 12.5.1)."""

TEXT_TYPES = ("text/plain", "text/*", "application/openmetrics-text")


def wants_text(accept: str) -> bool:
    """True for a client that names text and does not prefer JSON; false for `*/*`, browsers and no header at all.

    Of two types with equal weight the one named first is preferred: a client that sends
    `application/json, text/plain, */*` is after JSON.
    """
    texts, jsons = [(0.0, 0)], [(0.0, 0)]
    for place, part in enumerate(accept.lower().split(",")):
        media_type, weight = _media_range(part)
        if media_type in TEXT_TYPES:
            texts.append((weight, -place))
        elif media_type == "application/json":
            jsons.append((weight, -place))
    best = max(texts)
    return best[0] > 0 and best > max(jsons)


def _media_range(part: str) -> tuple[str, float]:
    media_type, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return media_type, _weight(value.strip())
    return media_type, 1.0


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
