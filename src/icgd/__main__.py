"""The command `icgd`, also run as `python -m icgd`. `main` imports the slow modules."""

from __future__ import annotations

from importlib import import_module

from icgd.cli.exit_codes import INTERRUPTED


def main() -> None:
    """Run the command line; Ctrl-C exits without a traceback, even during imports."""
    try:
        import_module("icgd.cli.app").main()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
