"""Write a script that runs a function of a notebook or a module, with everything there that the function uses."""

import ast
import builtins
import functools
import inspect
import linecache
import math
import pprint
import symtable
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from types import FunctionType, ModuleType
from typing import Any

from kubetrain_components.secret_values import is_secret
from kubetrain_trainer.errors import InvalidSetting

SCRIPT = "kubetrain_function.py"
PLAIN = (type(None), bool, int, float, complex, str, list, tuple, dict)
RETURNS_EARLY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
KEEP = "from kubetrain_trainer.own_code.own_output import keep_returned as _keep_returned\n"
END = '\n\nif __name__ == "__main__":\n    _keep_returned({}({}))\n'


def script_text(call: "functools.partial[Any]") -> str:
    """
    Raises:
        InvalidSetting: if it calls no function, or one that needs what cannot be written as text.
    """
    if not isinstance(inspect.unwrap(call.func), FunctionType) or any(each(call.func) for each in RETURNS_EARLY):
        raise InvalidSetting(f"train.entry is {call.func!r}: pass a function made by def, without async and yield")
    name, parts = call.func.__name__, _Parts(inspect.unwrap(call.func))
    try:
        inspect.signature(call.func).bind(*call.args, **call.keywords)
    except TypeError as error:
        raise InvalidSetting(f"train.entry: {name}() has {error}: pass functools.partial({name}, …)") from None
    parts.add(name, call.func, "the script")
    arguments = [parts.literal(f"argument {number}", value, name) for number, value in enumerate(call.args, 1)]
    arguments += [f"{key}={parts.literal(key, value, name)}" for key, value in call.keywords.items()]
    return parts.text() + END.format(name, ", ".join(arguments))


class _Parts:
    """The parts of a script by the names that they define, each after those that it needs."""

    def __init__(self, function: FunctionType) -> None:
        self._parts = {"_keep_returned": KEEP}
        self._module = function.__module__  # its functions and classes are parts, those of others are imported
        has_future = hasattr(function.__globals__.get("annotations"), "compiler_flag")
        self._future = "from __future__ import annotations\n" if has_future else ""

    def text(self) -> str:
        parts = sorted(self._parts.values(), key=lambda part: not part.startswith(("import ", "from ")))
        return self._future + "".join(parts)

    def add(self, name: str, value: Any, user: str) -> None:
        """Add what a name means to a function or class, its user."""
        raw = inspect.unwrap(value)
        if isinstance(value, ModuleType):
            self._put(name, f"import {value.__name__} as {name}\n")
        elif isinstance(raw, FunctionType | type) and raw.__module__ == self._module:
            self._define(name, value, raw, user)
        elif place := self._place_of(name, value):
            self._put(name, f"from {place} as {name}\n")
        else:
            self._put(name, f"{name} = {self.literal(name, value, user)}\n")

    def literal(self, name: str, value: Any, user: str) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return f"float('{value}')"
        with suppress(ValueError, SyntaxError):
            text = pprint.pformat(value, width=100, compact=True, sort_dicts=False) if type(value) in PLAIN else ""
            if ast.literal_eval(text) == value and not (isinstance(value, str) and is_secret("", value)):
                return text
        raise InvalidSetting(
            f"train.entry: {user} uses {name} ({type(value).__name__}), which is not a plain value, or maybe a secret: "
            f"make or import it inside of {user}, pass a plain value by functools.partial, or bring a script by code="
        )

    def _place_of(self, name: str, value: Any) -> str:
        """Return where a value can be imported from, by the shortest name of a module; empty: nowhere."""
        module, own = str(getattr(value, "__module__", "")), str(getattr(value, "__name__", name))
        places = accumulate(module.split("."), "{}.{}".format) if module != self._module else ()
        tried = [(place, known) for place in places for known in (own, name)]
        return next((f"{at} import {own}" for at, own in tried if getattr(sys.modules.get(at), own, None) is value), "")

    def _define(self, name: str, value: Any, raw: FunctionType | type, user: str) -> None:
        own, (text, scope) = raw.__name__, _definition_of(raw)
        is_decorated = text.lstrip().startswith("@")
        if not text or value is not (scope.get(own, name == own and value) if is_decorated else raw):
            raise InvalidSetting(
                f"train.entry: {user} needs {name} ({type(value).__name__}), whose text is not certain: define it once "
                "by def or class, with decorators that use functools.wraps, and run that again after a change"
            )
        text = "\n\n" + ("if True:\n" if text[0].isspace() else "") + text  # dedented, its strings could change
        if self._parts.get(own) != text:
            self._put(own, text)
            if isinstance(raw, FunctionType):
                _check_defaults(raw, text, scope)
            self._add_used(own, self._future + text, scope)
            self._parts[own] = self._parts.pop(own)
        if name != own:
            self._put(name, f"{name} = {own}\n")

    def _add_used(self, user: str, text: str, scope: dict[str, Any]) -> None:
        for name in sorted({*_globals_of(symtable.symtable(text, SCRIPT, "exec"))}):
            value = scope.get(name, getattr(builtins, name, self))
            if value is self or str(getattr(value, "__module__", "")).startswith("IPython."):
                raise InvalidSetting(f"train.entry: {user} uses {name}, which pods lack: define it inside of {user}")
            if not name.endswith("__") and inspect.unwrap(value) is not getattr(builtins, name, self):
                self.add(name, value, user)
        for node in ast.walk(ast.parse(text)):
            first, _, rest = ast.unparse(node).partition(".") if isinstance(node, ast.Attribute) else ("", "", "")
            module = f"{getattr(scope.get(first), '__name__', None)}.{rest}"
            if isinstance(scope.get(first), ModuleType) and module in sys.modules:
                self._put(module, f"import {module}\n")

    def _put(self, name: str, part: str) -> None:
        if self._parts.setdefault(name, part) != part:
            raise InvalidSetting(f"train.entry: {name} has two meanings in the functions that it uses: rename one")


def _check_defaults(function: FunctionType, text: str, scope: dict[str, Any]) -> None:
    """
    Raises:
        InvalidSetting: if a default is a name whose value has changed since.
    """
    given = next(
        each.args for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    written = [*given.defaults, *filter(None, given.kw_defaults)]
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for node, value in zip(written, values, strict=False):
        if isinstance(node, ast.Name) and repr(scope.get(node.id, value)) != repr(value):
            name = function.__name__
            raise InvalidSetting(f"train.entry: {node.id} is not what a default of {name} was: define {name} again")


def _definition_of(value: FunctionType | type) -> tuple[str, dict[str, Any]]:
    """Return the text of a function or class, empty if several could be it, and what names mean in it."""
    members = [inspect.unwrap(each) for each in ([value] if isinstance(value, FunctionType) else vars(value).values())]
    functions = [each for each in members if isinstance(each, FunctionType)]
    if not isinstance(value, FunctionType):  # @dataclass makes methods that no file has
        functions = [each for each in functions if linecache.getlines(each.__code__.co_filename)]
    scope = dict(functions[0].__globals__ if functions else vars(sys.modules[value.__module__]))
    with suppress(ValueError):  # of a variable without a value
        for function in functions:
            scope |= inspect.getclosurevars(function).nonlocals
    cells = [name for name, entry in linecache.cache.items() if entry[1:2] == (None,)]
    files = {each.__code__.co_filename for each in functions} or ([scope["__file__"]] if "__file__" in scope else cells)
    found = [item for file in files for item in _definitions_in(file, value.__name__)]
    texts = {text for lines, text in found if all(each.__code__.co_firstlineno in lines for each in functions)}
    return texts.pop() if len(texts) == 1 else "", scope


def _definitions_in(file: str, name: str) -> Iterator[tuple[range, str]]:
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    with suppress(SyntaxError):  # of a cell that did not run
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
                first = min(part.lineno for part in (node, *node.decorator_list))
                yield range(first, (node.end_lineno or first) + 1), "".join(lines[first - 1 : node.end_lineno])


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced())
    for inner in table.get_children():
        yield from _globals_of(inner)
