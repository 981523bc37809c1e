"""The address of a ledger on Postgres, as `url` under [store] in config.toml gives it."""

from urllib.parse import parse_qsl, urlsplit

SCHEMES = ("postgresql", "postgres")


def problem_of(url: str) -> str | None:
    """What is wrong with an address; None if it can be used."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"not a valid address: {error}"
    if parts.scheme not in SCHEMES:
        return "must begin with postgresql://"
    if parts.password is not None or any(name == "password" for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        return "must not contain a password; put it into ~/.pgpass (one line HOST:PORT:DATABASE:USER:PASSWORD, mode 600) or name that file in PGPASSFILE"
    return None


def shown(url: str) -> str:
    """An address for messages: without a password and without options, except a host that is given as one."""
    parts = urlsplit(url)
    user, has_user, place = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query))
    host = f"?host={options['host']}" if "host" in options else ""
    return f"{parts.scheme}://{user.partition(':')[0]}{has_user}{place}{parts.path}{host}"
