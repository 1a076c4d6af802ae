"""How many lines a training loop needs for each way to live through a slow or lost rank, counted
from loops that are in the tree: each beside the same loop without. test_loops.py runs them.

A line holds code. A change of indentation alone is not counted; a long call has as many lines as
black gives it.
"""

import ast
import difflib
import io
import pathlib
import tokenize
from typing import Dict, List, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOOPS = ROOT / "tests" / "interop" / "loops"
PIPELINE, REPLICAS = LOOPS / "pipeline.py", LOOPS / "replicas.py"
PAIRS: Dict[str, Tuple[pathlib.Path, pathlib.Path]] = {
    "cairn": (PIPELINE, ROOT / "examples" / "pipeline.py"),
    "shares": (REPLICAS, ROOT / "examples" / "shares.py"),
    "dcp": (PIPELINE, LOOPS / "pipeline_dcp.py"),
    "torchft": (REPLICAS, LOOPS / "replicas_torchft.py"),
}
NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def code_lines(text: str) -> List[str]:
    """Without blank lines, comments, docstrings and indentation."""
    used = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            used.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            used.difference_update(range(node.lineno, node.end_lineno + 1))
    return [line.strip() for number, line in enumerate(text.splitlines(), 1) if number in used]


def added(before: str, after: str) -> int:
    """Code lines of `after` that are new or changed."""
    old, new = code_lines(before), code_lines(after)
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return sum(end - begin for kind, _, _, begin, end in changes if kind in ("insert", "replace"))


def count() -> Dict[str, int]:
    return {
        name: added(before.read_text(encoding="utf-8"), after.read_text(encoding="utf-8"))
        for name, (before, after) in PAIRS.items()
    }
