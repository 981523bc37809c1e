import sys

sys.dont_write_bytecode = False  # a command line that starts often must not compile itself every time

from backburner.interfaces.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
