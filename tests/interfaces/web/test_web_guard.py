"""Which requests the guard of the web interface refuses, by their headers alone."""

import pytest

from backburner.interfaces.web.guard import Kind, Sent, addresses, rejection

KNOWN = addresses(8765, "phone.example", "https://laptop.example.ts.net")
OWN = Sent(host="backburner.localhost:8765", origin="http://backburner.localhost:8765", site="same-origin", content_type="application/json")
DEVICE = "Bearer dev_abc"


def status(method: str, sent: Sent, kind: Kind = Kind.API) -> int | None:
    found = rejection(method, kind, sent, KNOWN)
    return found.status if found else None


@pytest.mark.parametrize("host", ["backburner.localhost:8765", "127.0.0.1:8765", "LOCALHOST:8765", "[::1]:8765", "laptop.example.ts.net"])
def test_each_address_of_the_server_is_accepted(host: str) -> None:
    assert status("GET", Sent(host=host)) is None


@pytest.mark.parametrize("host", [None, "", "evil.example:8765", "backburner.localhost:8766", "backburner.localhost", "192.168.1.5:8765"])
def test_any_other_host_gets_421(host: str | None) -> None:
    assert status("GET", Sent(host=host)) == 421


@pytest.mark.parametrize(
    ("method", "sent", "expected"),
    [
        ("POST", OWN, None),
        ("POST", OWN._replace(origin="http://backburner.localhost:8766"), 403),  # a page on another port
        ("POST", OWN._replace(origin="http://localhost:8765"), 403),  # another name of the same server
        ("POST", OWN._replace(origin="https://evil.example"), 403),
        ("POST", OWN._replace(origin="null"), 403),
        ("GET", OWN._replace(origin="https://evil.example"), 403),
        ("GET", OWN._replace(site="same-site"), 403),
        ("GET", OWN._replace(site="cross-site"), 403),
        ("GET", OWN._replace(origin=None, site="none"), None),
        ("POST", OWN._replace(origin=None), 403),  # a browser sends it always
        ("POST", OWN._replace(origin=None, site=None, authorization=DEVICE), 403),
        ("POST", OWN._replace(origin=None, site=None, authorization="Bearer token"), None),  # a script
        ("POST", Sent(host="127.0.0.1:8765", origin="https://laptop.example.ts.net", content_type="application/json"), None),
        ("POST", Sent(host="phone.example", origin="https://phone.example", content_type="application/json"), None),
        ("POST", Sent(host="phone.example", origin="http://phone.example", content_type="application/json"), 403),
        ("PUT", OWN, 405),
        ("POST", OWN._replace(content_type="text/plain"), 415),
        ("POST", OWN._replace(content_type="application/x-www-form-urlencoded"), 415),
        ("POST", OWN._replace(content_type=None, content_length="7"), 415),
        ("POST", OWN._replace(content_type=None, content_length="0"), None),
        ("POST", OWN._replace(content_length="1048577"), 413),
        ("POST", OWN._replace(content_length="x"), 400),
        ("POST", OWN._replace(repeated="host"), 400),
    ],
)
def test_a_request_is_refused_by_its_headers(method: str, sent: Sent, expected: int | None) -> None:
    assert status(method, sent) == expected


def test_a_link_from_another_site_opens_the_page_but_reads_no_data() -> None:
    sent = Sent(host="backburner.localhost:8765", site="cross-site", mode="navigate")
    assert status("GET", sent, Kind.PAGE) is None and status("GET", sent, Kind.API) == 403
    assert status("GET", sent._replace(mode="cors"), Kind.PAGE) == 403
