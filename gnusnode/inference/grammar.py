"""A bounded subset of JSON Schema as a grammar for constrained output. Pure: plain data in, GBNF text out.

The grammar is our own from the first to the last character: names are numbered, literals are escaped, repetitions are
counted. That matters because the native grammar parser crashes or hangs on hostile input. Supported:

    type (also a list of types), enum and const of scalars, anyOf, {} or true (any JSON, four levels deep)
    object   properties, required; optional properties in their order; nothing else (additionalProperties false);
             without properties any object, four levels deep
    array    items, minItems, maxItems
    string   minLength, maxLength, format date, time, date-time, uuid (others are not enforced)
    integer  minimum, maximum, exclusiveMinimum, exclusiveMaximum
    number   minimum 0
    $ref     to the schema's own $defs or definitions, without recursion

An upper bound over ``MAX_REPEAT`` is not enforced by the grammar; validate the answer. Everything else is refused with
the path of what was refused. Output is compact JSON with at most one space after a colon or comma.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, cast

from gnusnode.errors import SchemaRefused
from gnusnode.inference.numbers import integer_range

MAX_DEPTH: Final = 8
MAX_NODES: Final = 256
MAX_PROPERTIES: Final = 64
MAX_CHOICES: Final = 128
MAX_LITERAL: Final = 256
MAX_REPEAT: Final = 256
MAX_GRAMMAR: Final = 64 * 1024
MAX_UNROLLED: Final = 4096
"""Sum of all repetition counts: the native parser writes each repetition out."""

_ANY_DEPTH: Final = 4
ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$comment"}
)
"""Keywords that say nothing about the value."""
_KEYWORDS: Final[dict[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "format"}),
    "number": frozenset({"minimum"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_SCALARS: Final = {
    "number": 'integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,17})',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "string": '"\\"" char* "\\""',
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    "comma": '"," " "?',
    "colon": '":" " "?',
}
_UNSIGNED: Final = '("0" | [1-9] [0-9]{0,17}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?'
_DATE: Final = '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
_TIME: Final = (
    '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,9})?'
    ' ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
)
_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"[0-9a-f]{{{count}}}" for count in (8, 4, 4, 4, 12)),
}


def compile_schema(schema: Mapping[str, Any], path: str = "json_schema") -> str:
    """The grammar of all texts that satisfy ``schema``; its start is ``root``.

    Args:
        path: how the caller's request calls the schema; refusals begin with it.

    Raises:
        SchemaRefused: outside the subset; ``param`` is the path of what was refused.
    """
    return _Compiler(schema, path).text()


class _Compiler:
    def __init__(self, schema: Mapping[str, Any], path: str) -> None:
        self._path = path
        self._rules: dict[str, str] = {}
        self._nodes = 0
        self._unrolled = 0
        self._size = 0
        self._definitions = _definitions(schema, path)
        self._define("root", self._schema(schema, path, 0, ()))

    def text(self) -> str:
        return "".join(f"{name} ::= {body}\n" for name, body in self._rules.items())

    def _schema(self, schema: object, path: str, depth: int, refs: tuple[str, ...]) -> str:
        """The name of a rule for ``schema``."""
        self._nodes += 1
        if depth > MAX_DEPTH:
            _refuse(path, f"nested deeper than {MAX_DEPTH} levels")
        if self._nodes > MAX_NODES:
            _refuse(path, f"more than {MAX_NODES} schemas, counting each use of a reference")
        if schema is True:
            return self._any(_ANY_DEPTH)
        if not isinstance(schema, Mapping):
            _refuse(path, "a schema must be an object")
        node = {key: value for key, value in _texts(cast("object", schema), path).items() if key not in ANNOTATIONS}
        if depth == 0:
            node = {key: value for key, value in node.items() if key not in ("$defs", "definitions")}
        if not node:
            return self._any(_ANY_DEPTH)
        if "$ref" in node:
            _only(node, {"$ref"}, path)
            return self._reference(node["$ref"], f"{path}.$ref", depth, refs)
        if "anyOf" in node:
            _only(node, {"anyOf"}, path)
            options = _list(node["anyOf"], f"{path}.anyOf", MAX_CHOICES)
            names = [self._schema(o, f"{path}.anyOf.{i}", depth + 1, refs) for i, o in enumerate(options)]
            return self._rule(" | ".join(names))
        if "const" in node or "enum" in node:
            return self._choices(node, path)
        return self._typed(node, path, depth, refs)

    def _reference(self, target: object, path: str, depth: int, refs: tuple[str, ...]) -> str:
        if not isinstance(target, str) or target not in self._definitions:
            _refuse(path, "only references to the schema's own #/$defs/… are followed")
        if target in refs:
            _refuse(path, "recursive references have no bounded grammar")
        return self._schema(self._definitions[target], path, depth + 1, (*refs, target))

    def _choices(self, node: dict[str, Any], path: str) -> str:
        _only(node, {"const", "enum", "type"}, path)
        if "const" in node and "enum" in node:
            _refuse(path, "const and enum together are not supported")
        values = [node["const"]] if "const" in node else _list(node["enum"], f"{path}.enum", MAX_CHOICES)
        kinds = self._types(node, path) if "type" in node else None
        literals = [_json_literal(value, path) for value in values if kinds is None or _kind(value) & set(kinds)]
        if not literals:
            _refuse(path, "no value of the enumeration is of the type")
        return self._rule(" | ".join(literals))

    def _typed(self, node: dict[str, Any], path: str, depth: int, refs: tuple[str, ...]) -> str:
        kinds = self._types(node, path)
        _only(node, {"type"}.union(*(_KEYWORDS[kind] for kind in kinds)), path)
        names: list[str] = []
        for kind in kinds:
            if kind == "object":
                names.append(self._object(node, path, depth, refs))
            elif kind == "array":
                names.append(self._array(node, path, depth, refs))
            elif kind == "string":
                names.append(self._string(node, path))
            elif kind in ("integer", "number"):
                names.append(self._number(node, kind, path))
            else:
                names.append(self._scalar(kind))
        return names[0] if len(names) == 1 else self._rule(" | ".join(names))

    def _types(self, node: dict[str, Any], path: str) -> list[str]:
        if "type" not in node:
            _refuse(path, f"{sorted(node)[0]!r} without a type is not supported")
        given = node["type"]
        kinds = [given] if isinstance(given, str) else _list(given, f"{path}.type", len(_KEYWORDS))
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _KEYWORDS:
                _refuse(f"{path}.type", "not a type of JSON Schema")
        return cast("list[str]", kinds)

    def _number(self, node: dict[str, Any], kind: str, path: str) -> str:
        bounds = {key: node[key] for key in sorted(_KEYWORDS["integer"]) if key in node}
        if not bounds:
            return self._scalar(kind)
        if kind == "number":
            if bounds != {"minimum": 0}:
                _refuse(f"{path}.{next(iter(bounds))}", "for a number, only minimum 0 is supported")
            self._scalar("number")
            return self._rule(_UNSIGNED)
        limits = {key: _bound(value, f"{path}.{key}") for key, value in bounds.items()}
        lows = [math.ceil(limits["minimum"])] if "minimum" in limits else []
        lows += [math.floor(limits["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in limits else []
        highs = [math.floor(limits["maximum"])] if "maximum" in limits else []
        highs += [math.ceil(limits["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in limits else []
        try:
            return self._rule(integer_range(max(lows, default=None), min(highs, default=None)))
        except ValueError as error:
            _refuse(path, str(error))

    def _object(self, node: dict[str, Any], path: str, depth: int, refs: tuple[str, ...]) -> str:
        if "properties" not in node and "additionalProperties" not in node and "required" not in node:
            return self._any_object(_ANY_DEPTH)
        if node.get("additionalProperties", False) is not False:
            _refuse(f"{path}.additionalProperties", "only false is supported")
        properties = _texts(node.get("properties", {}), f"{path}.properties")
        required = _list(node.get("required", []), f"{path}.required", MAX_PROPERTIES, least=0)
        if len(properties) > MAX_PROPERTIES:
            _refuse(f"{path}.properties", f"more than {MAX_PROPERTIES} properties")
        if any(not isinstance(name, str) or name not in properties for name in required):
            _refuse(f"{path}.required", "a required property is not among the properties")
        members: list[tuple[str, bool]] = []
        for name, schema in properties.items():
            value = self._schema(schema, f"{path}.properties.{name[:64]}", depth + 1, refs)
            key = _json_literal(name, f"{path}.properties")
            members.append((f"{key} {self._scalar('colon')} {value}", name in required))
        return self._rule(f'"{{" {self._members(members)} "}}"')

    def _members(self, members: Sequence[tuple[str, bool]]) -> str:
        """Members in order, the optional ones or not, with commas only between them: two rules a member."""
        first, rest = '""', '""'
        for member, is_required in reversed(members):
            named = self._rule(member)
            comma = self._scalar("comma")
            begin = f"{named} {rest}"
            first = begin if is_required else self._rule(f"{begin} | {first}")
            rest = self._rule(f"{comma} {named} {rest}" if is_required else f"({comma} {named})? {rest}")
        return first

    def _array(self, node: dict[str, Any], path: str, depth: int, refs: tuple[str, ...]) -> str:
        least, most = self._bounds(node, "minItems", "maxItems", path)
        if most == 0:
            return self._rule('"[]"')
        item = self._schema(node.get("items", {}), f"{path}.items", depth + 1, refs)
        more = self._repeat(f"{self._scalar('comma')} {item}", max(0, least - 1), None if most is None else most - 1)
        body = f"{item} {more}"
        return self._rule(f'"[" {body} "]"' if least else f'"[" ({body})? "]"')

    def _string(self, node: dict[str, Any], path: str) -> str:
        pattern = node.get("format")
        if pattern is not None and not isinstance(pattern, str):
            _refuse(f"{path}.format", "a format is a text")
        if pattern in _FORMATS:
            return self._rule(f'"\\"" {_FORMATS[pattern]} "\\""')
        least, most = self._bounds(node, "minLength", "maxLength", path)
        if (least, most) == (0, None):
            return self._scalar("string")
        return self._rule(f'"\\"" {self._repeat(self._scalar("char"), least, most)} "\\""')

    def _bounds(self, node: dict[str, Any], low: str, high: str, path: str) -> tuple[int, int | None]:
        least, most = (_count(node.get(key, default), f"{path}.{key}") for key, default in ((low, 0), (high, math.inf)))
        if least > MAX_REPEAT:
            _refuse(f"{path}.{low}", f"more than {MAX_REPEAT}")
        if most < least:
            _refuse(f"{path}.{high}", f"less than {low}")
        return int(least), int(most) if most <= MAX_REPEAT else None

    def _repeat(self, what: str, least: int, most: int | None) -> str:
        self._unrolled += least if most is None else most
        if self._unrolled > MAX_UNROLLED:
            _refuse(self._path, f"repetitions add up to more than {MAX_UNROLLED}")
        if most == 0:
            return '""'
        return f"({what}){{{least},{'' if most is None else most}}}"

    def _any(self, depth: int) -> str:
        """Any JSON value of ``depth`` levels."""
        name = f"any{depth}"
        if name in self._rules:
            return name
        scalars = " | ".join(self._scalar(kind) for kind in ("string", "number", "boolean", "null"))
        if depth == 0:
            return self._define(name, scalars)
        value, comma = self._any(depth - 1), self._scalar("comma")
        array = f'"[" ({value} ({comma} {value})*)? "]"'
        return self._define(name, f"{scalars} | {array} | {self._any_object(depth)}")

    def _any_object(self, depth: int) -> str:
        """Any JSON object of ``depth`` levels."""
        name = f"object{depth}"
        if name in self._rules:
            return name
        value, comma, colon = self._any(depth - 1), self._scalar("comma"), self._scalar("colon")
        member = f"{self._scalar('string')} {colon} {value}"
        return self._define(name, f'"{{" ({member} ({comma} {member})*)? "}}"')

    def _scalar(self, kind: str) -> str:
        if kind not in self._rules:
            for needed in {"string": ["char"], "number": ["integer"]}.get(kind, []):
                self._scalar(needed)
            self._define(kind, _SCALARS[kind])
        return kind

    def _rule(self, body: str) -> str:
        return self._define(f"r{len(self._rules)}", body)

    def _define(self, name: str, body: str) -> str:
        self._size += len(body) + 16
        if self._size > MAX_GRAMMAR:
            _refuse(self._path, f"its grammar is larger than {MAX_GRAMMAR} characters")
        self._rules[name] = body
        return name


def _definitions(schema: object, path: str) -> dict[str, Any]:
    """All reference targets of a schema, by the text that refers to them."""
    root = _texts(schema, path)
    found: dict[str, Any] = {}
    for key in ("$defs", "definitions"):
        for name, target in _texts(root.get(key, {}), f"{path}.{key}").items():
            found[f"#/{key}/{name}"] = target
    return found


def _json_literal(value: object, path: str) -> str:
    """The JSON text of a scalar as a GBNF literal."""
    if value is not None and not isinstance(value, str | int | float):
        _refuse(path, "only texts, numbers, booleans and null can be enumerated")
    if isinstance(value, float) and not math.isfinite(value):
        _refuse(path, "not a number of JSON")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        _refuse(path, "an integer does not fit 64 bits")
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > MAX_LITERAL:
        _refuse(path, f"a value or name is longer than {MAX_LITERAL} characters")
    return '"' + "".join(_escaped(char, path) for char in text) + '"'


def _escaped(char: str, path: str) -> str:
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        _refuse(path, "a lone surrogate is no text")
    if char in '"\\':
        return "\\" + char
    if 0x20 <= code < 0x7F:
        return char
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _kind(value: object) -> set[str]:
    """The JSON Schema types that a scalar is of."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    return {"number"} if isinstance(value, float) else {"string"}


def _texts(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", value)):
        _refuse(path, "an object with texts for keys was expected")
    return dict(cast("Mapping[str, Any]", value))


def _list(value: object, path: str, most: int, *, least: int = 1) -> list[Any]:
    if not isinstance(value, list | tuple):
        _refuse(path, "a list was expected")
    items = list(cast("Sequence[Any]", value))
    if not least <= len(items) <= most:
        _refuse(path, f"between {least} and {most} entries are supported")
    return items


def _count(value: object, path: str) -> float:
    if value == math.inf:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _refuse(path, "not a count")
    if value < 0 or value != int(value):
        _refuse(path, "not a count")
    return int(value)


def _bound(value: object, path: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _refuse(path, "not a number")
    return value


def _only(node: dict[str, Any], allowed: set[str], path: str) -> None:
    for key in node:
        if key not in allowed:
            _refuse(f"{path}.{key[:64]}", f"the keyword {key[:64]!r} is not supported here")


def _refuse(path: str, reason: str) -> NoReturn:
    raise SchemaRefused(
        f"this response schema is not supported: {reason}",
        param=path[:200],
        hint="see the documentation for the supported part of JSON Schema",
    )
