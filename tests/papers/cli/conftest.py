"""Tests of subcommands share the fixture of the command line."""

from tests.cli.conftest import command as command
