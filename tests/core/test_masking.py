"""Which parts of a command are masked as secrets, and which are not."""

import pytest

from backburner.core.masking import hide_secrets, masked_line, masked_words

HIDDEN = [
    ("curl -H 'Authorization: Bearer abc123' https://h", "curl -H 'Authorization: ***' https://h"),
    ('curl -H "authorization: Basic abc123" h', 'curl -H "authorization: ***" h'),
    ("curl --header='X-Api-Key: abc123' h", "curl --header='X-Api-Key: ***' h"),
    ("git clone https://ann:abc123@example.org/x", "git clone https://ann:***@example.org/x"),
    ("git clone https://abc123@example.org/x", "git clone https://***@example.org/x"),
    ("psql postgres://u:abc123@h/db", "psql postgres://u:***@h/db"),
    ("tool --token abc123 --verbose", "tool --token *** --verbose"),
    ("tool --token=abc123", "tool --token=***"),
    ("tool --auth-token 'abc 123' x", "tool --auth-token *** x"),
    ("tool --password abc123", "tool --password ***"),
    ("tool -password abc123", "tool -password ***"),
    ("GITHUB_TOKEN=abc123 gh pr list", "GITHUB_TOKEN=*** gh pr list"),
    ("export AWS_SECRET_ACCESS_KEY=abc123; x", "export AWS_SECRET_ACCESS_KEY=***; x"),
    ("curl 'https://h/x?api_key=abc123&y=1'", "curl 'https://h/x?api_key=***&y=1'"),
    ("curl -s -u ann:abc123 https://h", "curl -s -u ann:*** https://h"),
    ("curl --user=ann:abc123 https://h", "curl --user=ann:*** https://h"),
    ("""curl -H "Authorization: Bearer 'abc123'" h""", 'curl -H "Authorization: ***" h'),
    ("""curl -H 'Authorization: Digest username="u", response="abc123"' h""", "curl -H 'Authorization: ***' h"),
    ("curl -H Authorization:\\ Bearer\\ 'abc123' h", "curl -H Authorization:***"),
    ("""curl -d '{"password": "abc123", "x": 1}' h""", """curl -d '{"password": ***, "x": 1}' h"""),
    ("tool --token -abc123 x", "tool --token *** x"),
    ("tool --token --abc_123 x", "tool --token *** x"),
    ("curl ftp://u:abc/123@h/x", "curl ftp://u:***@h/x"),
    ("curl ftp://u:a/b/123@h/x?mail=a@b", "curl ftp://u:***@h/x?mail=a@b"),
    ("mysql -uroot -pabc123 db", "mysql -uroot -p*** db"),
    ("/usr/bin/mysqldump -P3306 -p'abc 123' db > x", "/usr/bin/mysqldump -P3306 -p*** db > x"),
    ("redis-cli -h h -a abc123 ping", "redis-cli -h h -a *** ping"),
    ("redis-cli --pass abc123 ping", "redis-cli --pass *** ping"),
    ("sshpass -p abc123 ssh h", "sshpass -p *** ssh h"),
    ("sshpass -pabc123 ssh h", "sshpass -p*** ssh h"),
]
WORDS = [
    (["curl", "-H", "Authorization: Bearer 'abc123'"], ["curl", "-H", "Authorization: ***"]),
    (["curl", "-HAuthorization: Bearer abc123"], ["curl", "-HAuthorization: ***"]),
    (["curl", "-H", 'Authorization: Digest username="u", response="abc123"'], ["curl", "-H", "Authorization: ***"]),
    (["wget", '--header=Authorization: Digest response="abc123"'], ["wget", "--header=Authorization: ***"]),
    (["tool", "--token", "-abc123", "x"], ["tool", "--token", "***", "x"]),
    (["tool", "--token", "--verbose", "-v"], ["tool", "--token", "--verbose", "-v"]),
    (["tool", "--password", "-v", "x"], ["tool", "--password", "-v", "x"]),
    (["curl", "ftp://u:abc/123@h"], ["curl", "ftp://u:***@h"]),
    (["/usr/bin/mysql", "-P3306", "-pabc123", "-p", "db"], ["/usr/bin/mysql", "-P3306", "-p***", "-p", "db"]),
    (["mariadb-dump", "-pabc123"], ["mariadb-dump", "-p***"]),
    (["redis-cli", "-a", "abc123", "ping"], ["redis-cli", "-a", "***", "ping"]),
    (["sshpass", "-p", "abc123", "ssh", "h"], ["sshpass", "-p", "***", "ssh", "h"]),
    (["sshpass", "-pabc123", "ssh", "h"], ["sshpass", "-p***", "ssh", "h"]),
]
SHOWN = [
    "git log --author=ann",
    "git clone git@example.org:x/y",
    "ssh://git@example.org/x",
    "docker run -u 1000:1000 image",
    "pytest -k token",
    "cat src/tokenizer.py",
    "grep -rn password src",
    "make all KEYS=2",
    "curl https://example.org/a:b",
    "npm install http://localhost:4873/@scope/package",
    "mysql -P3306 -p db",
    "mkdir -p abc123",
    "ls -a src",
    "tool --token --verbose -v",
    "grep 'token: ' src",
]


@pytest.mark.parametrize(("line", "shown"), HIDDEN)
def test_a_secret_in_a_command_line_is_masked(line: str, shown: str) -> None:
    assert hide_secrets(line) == shown
    assert masked_line((line,), True) == shown


@pytest.mark.parametrize("line", SHOWN)
def test_text_without_a_secret_is_unchanged(line: str) -> None:
    assert hide_secrets(line) == line


def test_an_argument_after_a_secret_option_is_masked() -> None:
    command = [
        "/usr/bin/curl",
        "-H",
        "Authorization: Bearer abc 123",
        "--token",
        "abc123",
        "-u",
        "ann:abc123",
        "https://u:abc123@h/x",
        "A_TOKEN=abc123",
    ]
    assert masked_words(command) == [
        "/usr/bin/curl",
        "-H",
        "Authorization: ***",
        "--token",
        "***",
        "-u",
        "ann:***",
        "https://u:***@h/x",
        "A_TOKEN=***",
    ]
    assert masked_line(("tool", "--token", "a b"), False) == "tool --token ***"


@pytest.mark.parametrize(("command", "shown"), WORDS)
def test_a_secret_in_the_arguments_of_a_command_is_masked(command: list[str], shown: list[str]) -> None:
    assert masked_words(command) == shown


def test_masking_a_long_line_is_fast() -> None:
    for line in (
        "a" * 200_000,
        "--token " * 20_000,
        "://" * 50_000,
        "curl -u " * 20_000,
        "://a:" * 20_000,
        "mysql -p" * 20_000,
        "'token: " * 20_000,
        "authauthauth" * 10_000,
    ):
        hide_secrets(line)
