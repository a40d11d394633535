"""Small errors that one could have made: each a file in which one thing of one line is another."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMPARISONS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
OPERATORS = ((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or), (ast.BitAnd, ast.BitOr))
SWAPS: dict[Any, Any] = {a: b for pair in (*COMPARISONS, *OPERATORS) for a, b in (pair, pair[::-1])}
SWAPS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
TWINS = {"min": "max", "amin": "amax", "argmin": "argmax", "minimum": "maximum", "any": "all"}
TWINS |= {two: one for one, two in TWINS.items()}


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    function: str  # or Class.method; nothing outside of them
    kind: str
    before: str  # the lines that change, as one
    after: str
    source: str  # of the whole file

    @property
    def id(self) -> str:
        return f"{self.file}:{self.line}: {self.before} → {self.after}"


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file; no two are the same."""
    text, file = path.read_text(), path.relative_to(ROOT).as_posix()
    lines, mutants = text.splitlines(keepends=True), {}
    for kind, function, node, new in changes(ast.parse(text)):
        first, last = node.lineno - 1, node.end_lineno
        old = "".join(lines[first:last]).encode()
        rest = len(old) - len(lines[last - 1].encode()) + node.end_col_offset
        changed = (old[: node.col_offset] + new.encode() + old[rest:]).decode()
        source = "".join([*lines[:first], changed, *lines[last:]])
        before, after = " ".join(old.decode().split()), " ".join(changed.split())
        mutants[source] = Mutant(file, node.lineno, function, kind, before, after, source)
    return list(mutants.values())


def changes(tree: ast.AST, owner: str = "", function: str = "") -> Iterator[tuple[str, str, Any, str]]:
    """(kind, function, node, what it becomes) for all that acts: no annotations, types, texts, complaints, stubs."""
    for field, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or field in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(node, (ast.JoinedStr, ast.Raise)) or (isinstance(tree, ast.Module) and is_type(node)):
                continue
            if isinstance(tree, ast.UnaryOp) and isinstance(node, ast.Constant):  # −1 is changed as one
                continue
            of = f"{owner}{node.name}." if isinstance(node, ast.ClassDef) else owner
            inside = function or (f"{owner}{node.name}" if isinstance(node, ast.FunctionDef) else "")
            yield from ((kind, inside, at, new) for kind, at, new in changes_here(node, inside))
            yield from changes(node, of, inside)


def changes_here(node: Any, function: str) -> Iterator[tuple[str, Any, str]]:
    def changed(**fields: Any) -> str:
        text = ast.unparse(type(node)(**dict(ast.iter_fields(node)) | fields))
        return f"({text})" if isinstance(node, (ast.Compare, ast.BinOp, ast.BoolOp)) else text

    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield "comparison", node, changed(ops=[*ops[:i], SWAPS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp(op=op, left=left, right=right) if type(op) in SWAPS and not (is_text(left) or is_text(right)):
            yield "arithmetic", node, changed(op=SWAPS[type(op)]())
        case ast.BoolOp(op=op):
            yield "boolean", node, changed(op=SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "unary", node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool()):
            yield "constant", node, str(not node.value)
        case ast.Constant(value=int() | float()):
            yield "constant", node, str(node.value + 1)
        case ast.Call(func=called, keywords=keywords):
            for i in range(len(keywords)):
                if keywords[i].arg:
                    yield "keyword", node, changed(keywords=keywords[:i] + keywords[i + 1 :])
            if isinstance(called, ast.Name) and called.id in TWINS:
                yield "twin", called, TWINS[called.id]
            elif isinstance(called, ast.Attribute) and called.attr in TWINS:
                yield "twin", called, ast.unparse(ast.Attribute(called.value, TWINS[called.attr]))
        case ast.Slice(lower=lower, upper=upper):
            for bound, shift in ((lower, "+"), (upper, "-")):
                if bound is not None and not isinstance(bound, (ast.Constant, ast.UnaryOp)):
                    yield "slice", bound, f"({ast.unparse(bound)}) {shift} 1"
        case ast.AugAssign(op=op):
            yield "deletion", node, "pass"
            if type(op) in SWAPS:
                yield "arithmetic", node, changed(op=SWAPS[type(op)]())
        case ast.Expr(value=ast.Call()):
            yield "deletion", node, "pass"
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value)):
                yield "deletion", node, "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]) if not function.endswith("__init__"):
            yield "deletion", node, "pass"
    for test in [node.test] if isinstance(node, (ast.If, ast.While, ast.IfExp)) else getattr(node, "ifs", []):
        if not isinstance(test, (ast.Compare, ast.UnaryOp)):  # those are turned round as they are
            yield "condition", test, f"(not ({ast.unparse(test)}))"


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_type(node: ast.AST) -> bool:
    """A union of types that has a name, or a protocol."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base) == "Protocol" for base in node.bases)
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
