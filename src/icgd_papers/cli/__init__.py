"""Subcommands of icgd that belong to the papers."""
