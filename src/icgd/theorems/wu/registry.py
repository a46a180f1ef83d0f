"""The statements of wu, in the order of the paper."""

from __future__ import annotations

from icgd.theorems.statement import Statement

STATEMENTS: tuple[Statement, ...] = ()
