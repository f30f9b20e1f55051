"""The house's rules as functions: source text in, violations out. test_architecture.py holds the house to them.

A source is (dotted module name, text). Each rule answers with one line a violation, naming the module, the line and the rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

PACKAGE = "phasemeter"

FLOORS: Mapping[str, int] = {
    "errors": 0, "units": 0, "lazy": 0, "records": 0,
    "wire": 1, "workload": 1, "server": 1, "stats": 1,
    "metrics": 2, "serving": 2,
    "phases": 3, "contract": 3, "comparison": 3,
    "studies": 4,
    "io": 5,
    "runs": 6,
    "report": 7,
    "cli": 8,
    "api": 8, "__main__": 9,
}  # fmt: skip
GROUND = {"errors", "units", "lazy", "records"}  # floor 0: may use one another, in this order of their own

IMPURE_FLOORS = {"io", "runs", "report", "cli", "api", "__main__", "lazy"}
IMPURE_MODULES = {
    "asyncio", "socket", "time", "random", "os", "pathlib", "subprocess", "threading", "multiprocessing",
}  # fmt: skip
# io/ sends and stamps; these are its only files that may know what bytes or a schedule of steps mean
NOT_SENDING = {"io.emulator", "io.emulator_http", "io.emulator_metrics", "io.emulator_spans", "io.emulator_truth"}
NEUTRAL_FORBIDS = {"wire", "metrics", "contract"}

MODULE_LINES, FUNCTION_LINES, DEPTH, PARAMETERS = 400, 60, 4, 6
BAD_NAMES = ("Base", "Mixin", "Manager", "Helper")
NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


def floor_of(module: str) -> tuple[str, int]:
    """The floor of `phasemeter.wire.sse` is ("wire", 1); of the package itself ("", -1): it may be imported by all."""
    parts = module.split(".")
    if len(parts) == 1:
        return "", -1
    return parts[1], FLOORS[parts[1]]


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that `tree` imports, by statement or by a literal name given to lazy.load, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            if node.module == PACKAGE or node.module.startswith(PACKAGE + "."):
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"load", "load_extra"} and isinstance(node.args[0].value, str):
                yield node.args[0].value, node.lineno


def imports_point_down(module: str, tree: ast.AST) -> Iterator[str]:
    own, level = floor_of(module)
    for name, line in imported(tree):
        if not name.startswith(PACKAGE + "."):
            continue
        part = name.split(".")[1]
        if part not in FLOORS:
            continue  # a name of the package itself, like __version__
        if part == own or (own in GROUND and part in GROUND):
            continue
        if own and FLOORS[part] >= level:
            yield f"{module}:{line}: imports {name}: floor {FLOORS[part]} is not below its own floor {level}"


def pure_floors_are_pure(module: str, tree: ast.AST) -> Iterator[str]:
    if floor_of(module)[0] in IMPURE_FLOORS | {""}:
        return
    for name, line in imported(tree):
        if name.split(".")[0] in IMPURE_MODULES:
            yield f"{module}:{line}: a pure floor imports {name}: take the instant, generator or bytes as an argument"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield f"{module}:{node.lineno}: a pure floor calls open(): take the bytes as an argument"


def capture_is_neutral(module: str, tree: ast.AST) -> Iterator[str]:
    short = module.removeprefix(PACKAGE + ".")
    if not short.startswith("io.") or short in NOT_SENDING:
        return
    for name, line in imported(tree):
        if name.startswith(PACKAGE + ".") and name.split(".")[1] in NEUTRAL_FORBIDS:
            yield f"{module}:{line}: the code that sends and stamps imports {name}: capture is neutral"


def depth_of(node: ast.AST, level: int = 0) -> int:
    deepest = level
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(
                child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
            ):
                continue
            is_elif = (
                isinstance(node, ast.If) and field == "orelse" and isinstance(child, ast.If) and len(node.orelse) == 1
            )
            deepest = max(deepest, depth_of(child, level + (isinstance(child, NESTING) and not is_elif)))
    return deepest


def sizes_are_small(module: str, tree: ast.AST, text: str) -> Iterator[str]:
    if (lines := text.count("\n")) > MODULE_LINES:
        yield f"{module}: {lines} lines, more than {MODULE_LINES}"
    in_cli = floor_of(module)[0] == "cli"
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        where = f"{module}:{node.lineno}: {node.name}"
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        args = node.args
        positional = [a for a in [*args.posonlyargs, *args.args] if a.arg not in {"self", "cls"}]
        parameters = len(positional) + (0 if in_cli else len(args.kwonlyargs))
        keyword_lines = (
            (args.kwonlyargs[-1].end_lineno or 0) - args.kwonlyargs[0].lineno + 1 if in_cli and args.kwonlyargs else 0
        )
        doc = node.body[0] if ast.get_docstring(node) else None
        doc_lines = (doc.end_lineno or 0) - doc.lineno + 1 if doc and in_cli else 0
        if length - keyword_lines - doc_lines > FUNCTION_LINES:
            yield f"{where} has {length} lines, more than {FUNCTION_LINES}"
        if (depth := depth_of(node)) > DEPTH:
            yield f"{where} nests {depth} levels, more than {DEPTH}"
        if parameters > PARAMETERS:
            yield f"{where} takes {parameters} parameters, more than {PARAMETERS}"


def imports_stand_at_the_top(module: str, tree: ast.AST) -> Iterator[str]:
    if module == f"{PACKAGE}.lazy":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    yield f"{module}:{inner.lineno}: import inside {node.name}: late loading lives in lazy.py"
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"import_module", "__import__"}:
                yield f"{module}:{node.lineno}: {name}(): late loading lives in lazy.py"


def _broad(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(k, ast.Name) and k.id in {"Exception", "BaseException"} for k in kinds)


def excepts_are_narrow(module: str, tree: ast.AST) -> Iterator[str]:
    if floor_of(module)[0] == "cli":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _broad(node.type):
            yield f"{module}:{node.lineno}: bare or broad except: name what can go wrong"


def names_are_plain(module: str, tree: ast.AST) -> Iterator[str]:
    if module.rsplit(".", 1)[-1] in {"utils", "util", "helpers", "common", "misc"}:
        yield f"{module}: a module is named for what lives in it"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (node.name.startswith("Base") or node.name.endswith(BAD_NAMES[1:])):
            yield f"{module}:{node.lineno}: class {node.name}: no Base*, *Mixin, *Manager, *Helper"


def violations(module: str, text: str) -> list[str]:
    """Every rule held against one module's source."""
    tree = ast.parse(text)
    return [
        *imports_point_down(module, tree),
        *pure_floors_are_pure(module, tree),
        *capture_is_neutral(module, tree),
        *sizes_are_small(module, tree, text),
        *imports_stand_at_the_top(module, tree),
        *excepts_are_narrow(module, tree),
        *names_are_plain(module, tree),
    ]


def circles(sources: Mapping[str, str]) -> list[list[str]]:
    """Import circles among modules, each as the list of modules on it."""
    graph = {
        module: sorted({name for name, _ in imported(ast.parse(text)) if name in sources and name != module})
        for module, text in sources.items()
    }
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
            return
        if module in done:
            return
        for name in graph[module]:
            walk(name, [*path, module])
        done.add(module)

    for module in graph:
        walk(module, [])
    return found
