import pytest

from offbeat.telemetry.negotiation import wants_text

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.parametrize(
    "accept",
    [PROMETHEUS_3, PROMETHEUS_2, "text/plain", "TEXT/PLAIN; Q=0.1", "text/*", "application/json;q=0.5, text/plain"],
)
def test_text_to_who_asks_for_it(accept):
    assert wants_text(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/json",
        "application/json, text/plain, */*",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "text/plain;q=0",
        "text/plain;q=nonsense",
        "text/plain;q=0.5, application/json;q=0.6",
        ";;,,=",
    ],
)
def test_json_to_everybody_else(accept):
    assert not wants_text(accept)
