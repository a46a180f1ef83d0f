"""The command `icgd`, also as `python -m icgd`. What takes time to import waits for `main`."""

from __future__ import annotations

from importlib import import_module

from icgd.cli.exit_codes import INTERRUPTED


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, also while it is imported."""
    try:
        import_module("icgd.cli.app").main()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
