"""`migrate`: creates or upgrades the tables of a ledger on Postgres."""

import argparse
import os

from backburner.coordination.config_file import load_config
from backburner.coordination.ledger_file import migrate_home_ledger
from backburner.core import task_text
from backburner.system.home import Home
from backburner.system.paths import locate


def migrate(args: argparse.Namespace, flags: dict[str, str]) -> int:
    environ = dict(os.environ)
    home = Home(locate(args.home, environ)).make()
    done = migrate_home_ledger(home, load_config(home, environ, flags))
    if args.json:
        task_text.print_json(done._asdict() if done else None)
    elif done is None:
        print(
            f"The ledger of {home.root} is a file, which is upgraded when it is opened. For Postgres, set `url` under [store] in {home.config}"
        )
    elif not done.before:
        print(f"Created the tables of the ledger {done.address}.")
    elif done.before < done.after:
        print(f"Upgraded the ledger {done.address} from schema {done.before} to {done.after}.")
    else:
        print(f"The ledger {done.address} is up to date.")
    return 0
