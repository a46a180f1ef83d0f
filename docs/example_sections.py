"""Examples of docstrings on the site: griffe shows `Examples:` as code, but not `Example:`."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Read a section `Example:` like a section `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of one docstring."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
