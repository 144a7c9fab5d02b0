"""The loops that README.md shows, to be run as they stand there."""

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def run(title, names):
    """Execute the block of code whose first line is the comment ``# title...``, with these names; the names afterwards."""
    text = README.read_text()
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    (found,) = (block for block in blocks if block.startswith(f"# {title}"))
    exec(compile(found, str(README), "exec"), names)  # noqa: S102
    return names
