"""Secrets in the arguments of a command are masked wherever it is listed; only the approval prompt shows them."""

import json
import sqlite3

from conftest import HomeCli

SECRET = "abc123abc"


def test_secrets_in_arguments_are_hidden_in_lists_audit_events_and_traces(home_cli: HomeCli) -> None:
    words = ("true", "--token", SECRET, f"Authorization: Bearer {SECRET}", f"https://ann:{SECRET}@example.org")
    words += (f"ftp://u:a/{SECRET}@h", "--api-key", f"-{SECRET}", f'Authorization: Digest u="x", response="{SECRET}"')
    task_id = home_cli.run(*words)
    home_cli.ok("wait", task_id)
    proposed = home_cli.cli("run", "--", "curl", "-H", f"Authorization: Bearer {SECRET}", "https://example.org")
    assert proposed.returncode == 3 and SECRET not in proposed.stderr
    home_cli.ok("run", "--yes", "--shell", "--", f"API_TOKEN={SECRET} true")
    for verb in (
        "list",
        "list --json",
        "audit",
        "audit --json",
        "events",
        "events --json",
        "inbox",
        "inbox --json",
        f"traces --json --task {task_id}",
    ):
        output = home_cli.ok(*verb.split())
        assert SECRET not in output and (verb.startswith(("events", "inbox")) or "***" in output), verb
    detail = home_cli.status(task_id)
    assert detail["command"] == list(words), "its details are exact"
    assert SECRET in home_cli.ok("status", task_id)


def test_permanent_permissions_are_listed_without_secrets(home_cli: HomeCli) -> None:
    with sqlite3.connect(home_cli.root / "ledger.db") if (home_cli.root / "ledger.db").exists() else _create_ledger(home_cli) as db:
        db.execute(
            "INSERT INTO grants (kind, project, command, via, created_at) VALUES ('always', '/p', ?, 'cli', 1)",
            (json.dumps(["x", "--token", SECRET]),),
        )
    assert SECRET not in home_cli.ok("trust", "--list") + home_cli.ok("trust", "--list", "--json")


def _create_ledger(home_cli: HomeCli) -> sqlite3.Connection:
    home_cli.ok("list")
    return sqlite3.connect(home_cli.root / "ledger.db")
