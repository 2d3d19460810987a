"""An extension of griffe, which reads the docstrings: doctests become code blocks, the rest plain text with `code`."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
CODE_OR_MARKUP = re.compile(r"```.*?```|`[^`]*`|[<*]", re.DOTALL)
ESCAPED = {"<": "&lt;", "*": r"\*"}


class Doctests(Extension):
    def on_object(self, *, obj: Object, **others: Any) -> None:
        """Fence every doctest; keep markdown from taking an inequality or a product for markup."""
        if obj.docstring is not None and not obj.is_alias:
            fenced = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = CODE_OR_MARKUP.sub(lambda found: ESCAPED.get(found[0], found[0]), fenced)
