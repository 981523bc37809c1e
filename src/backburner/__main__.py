import sys

sys.dont_write_bytecode = False  # write .pyc files even if the environment disables them, because the command starts often

from backburner.interfaces.cli.start import run  # noqa: E402

if __name__ == "__main__":
    run()
