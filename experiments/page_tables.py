"""Tables of the pages that the scripts here write."""

from collections.abc import Sequence


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table in markdown; its first line is the head."""
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|" + " --- |" * len(lines[0]), *body])
