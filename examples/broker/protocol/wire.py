"""The primitive types of the wire format, and the compiler from declared messages to encoders and decoders.

A message is an attrs class whose annotations are its wire types, in wire order:

    class HeartbeatResponse(Message):
        throttle_time_ms: Int32 = since(1, 0)     # on the wire from version 1 on, 0 before
        error_code: Int16 = 0

A generic message, such as ``OfTopic[ListedPartition]``, has the fields of its class, with its argument in their types.

From the declaration, one function per class, version and direction is *compiled*. In its Python source, every run of
fixed-size fields, with the length prefix that follows, is one ``struct`` call. For the class above, version 1, the
decoder contains:

    throttle_time_ms, error_code = unpack_ih(buf, pos); pos += 6
    value = HeartbeatResponse(throttle_time_ms, error_code)

An interpreting codec (a tree of type objects with ``encode`` and ``decode``) would be about forty lines shorter. It was
rejected because it needs a call per field, and the codec is the largest single cost of a small produce request. mypy
sees each type as the value that it decodes to (``Int16`` is an ``int``).

The decoder trusts no length. One that is negative where null is not allowed, or that reaches past the end, raises
``MalformedRequest`` before memory of that size is allocated. So does an array with too many elements, because the
objects take many times the bytes of the wire. Pure functions. They may be called from any thread.
"""

from __future__ import annotations

import struct
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from examples.broker.protocol.errors import MalformedRequest

if TYPE_CHECKING:
    from collections.abc import Callable

M = TypeVar("M")


@attrs.frozen
class _Fixed:
    """A field of fixed size: one character of a ``struct`` format."""

    char: str


@attrs.frozen
class _Sized:
    """Text or bytes after a length. -1 stands for null."""

    prefix: str
    text: bool


Int8 = Annotated[int, _Fixed("b")]
Int16 = Annotated[int, _Fixed("h")]
Int32 = Annotated[int, _Fixed("i")]
Int64 = Annotated[int, _Fixed("q")]
Boolean = Annotated[bool, _Fixed("?")]
String = Annotated[str, _Sized("h", text=True)]
NullableString = Annotated[str | None, _Sized("h", text=True)]
Bytes = Annotated[bytes, _Sized("i", text=False)]
NullableBytes = Annotated[bytes | None, _Sized("i", text=False)]

_LATEST = 99


def since(version: int, default: object) -> Any:
    """Declare a field that is on the wire from ``version`` on, and ``default`` before."""
    return attrs.field(default=default, metadata={"versions": range(version, _LATEST)})


def only(first: int, last: int, default: object) -> Any:
    """Declare a field that is on the wire in the versions ``first`` to ``last``."""
    return attrs.field(default=default, metadata={"versions": range(first, last + 1)})


def array(first: int = 0, last: int = _LATEST) -> Any:
    """Declare an array, by default empty."""
    return attrs.field(factory=list, metadata={"versions": range(first, last + 1)})


def decode(
    message: type[M], version: int, data: bytes, start: int = 0, end: int | None = None, *, most: int = 1 << 62
) -> M:
    """Read one message that fills ``data`` from ``start`` to ``end``, by default to the end of the data.

    All its arrays together have at most ``most`` elements.

    Raises:
        MalformedRequest: if the bytes are not such a message.
    """
    end = len(data) if end is None else end
    value, position = decode_prefix(message, version, data, start, end, most=most)
    if position != end:
        wrong = f"{end - position} bytes too many" if position < end else f"{position - end} bytes are missing"
        raise MalformedRequest(f"{message.__name__} v{version}: {wrong}")
    return value


def decode_prefix(
    message: type[M], version: int, data: bytes, start: int, end: int, *, most: int = 1 << 62
) -> tuple[M, int]:
    """Read one message at ``start``. Returns it and its end, which may be past ``end`` if the message is damaged.

    Raises:
        MalformedRequest: if the bytes are not such a message.
    """
    try:
        return _decoder(message, version)(data, start, end, most)  # type: ignore[arg-type]  # classes hash
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedRequest(f"{message.__name__} v{version}: {error}") from error


def encode(value: object, version: int) -> list[bytes]:
    """Return the message's bytes as pieces to join, so that a large payload is copied once, when it is framed."""
    pieces: list[bytes] = []
    _encoder(type(value), version)(value, pieces.append)  # type: ignore[arg-type]  # classes hash
    return pieces


class _Source:
    """Source code under construction, and the fixed-size fields that wait to be packed together."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[str, object] = {"MalformedRequest": MalformedRequest, "struct": struct}
        self.pending: list[tuple[str, str]] = []
        self._count = 0

    def fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def take_pending(self) -> tuple[struct.Struct, str, list[str]] | None:
        if not self.pending:
            return None
        packer = struct.Struct(">" + "".join(char for char, _ in self.pending))
        expressions = [expression for _, expression in self.pending]
        self.pending.clear()
        name = "s_" + packer.format[1:].replace("?", "t")
        self.names[name] = packer
        return packer, name, expressions

    def build(self, signature: str) -> Any:
        code = "\n".join([f"def compiled({signature}):", *self.lines])
        exec(compile(code, "<wire>", "exec"), self.names)  # noqa: S102 - the source comes from declarations above
        return self.names["compiled"]


def fields_of(message: type, version: int) -> list[tuple[attrs.Attribute[Any], Any, bool]]:
    """Each field with its wire type and whether this version has it."""
    generic, parts = get_origin(message) or message, get_args(message)
    hints = get_type_hints(generic, include_extras=True)
    everywhere = range(_LATEST)
    found = []
    for field in attrs.fields(generic):
        hint = hints[field.name]
        hint = hint[parts] if getattr(hint, "__parameters__", ()) else hint
        found.append((field, hint, version in field.metadata.get("versions", everywhere)))
    return found


def _wire_type(hint: Any) -> tuple[Any, bool]:
    """Split an annotation into its wire type and whether it may be null."""
    if get_origin(hint) is Annotated:
        plain, wire = get_args(hint)
        return wire, NoneType in get_args(plain)
    if get_origin(hint) in (Union, UnionType):
        return next(part for part in get_args(hint) if part is not NoneType), True
    return hint, False


@cache
def _decoder(message: Any, version: int) -> Callable[[bytes, int, int, int], tuple[Any, int]]:
    source = _Source()
    result = _decode_struct(source, message, version)
    source.add(f"return {result}, pos")
    return source.build("buf, pos, size, left")  # type: ignore[no-any-return]  # made of source


def _unpack(source: _Source) -> None:
    if (taken := source.take_pending()) is not None:
        packer, name, targets = taken
        source.add(f"{', '.join(targets)}, = {name}.unpack_from(buf, pos)")
        source.add(f"pos += {packer.size}")


def _decode_struct(source: _Source, message: type, version: int) -> str:
    arguments = []
    made = get_origin(message) or message
    for field, hint, present in fields_of(message, version):
        if present:
            arguments.append(_decode_value(source, hint, version))
        elif isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # typed as a function
            arguments.append("[]")
        else:
            source.names[default := f"d_{made.__name__}_{field.name}"] = field.default
            arguments.append(default)
    _unpack(source)
    source.names[made.__name__] = made
    result = source.fresh()
    source.add(f"{result} = {made.__name__}({', '.join(arguments)})")
    return result


def _decode_value(source: _Source, hint: Any, version: int) -> str:
    wire, nullable = _wire_type(hint)
    result = source.fresh()
    if isinstance(wire, _Fixed):
        source.pending.append((wire.char, result))
        return result
    is_array = get_origin(wire) is list
    if not is_array and not isinstance(wire, _Sized):
        return _decode_struct(source, wire, version)
    length = source.fresh()
    source.pending.append(("i" if is_array else wire.prefix, length))
    _unpack(source)
    source.add(f"if {length} < 0:")
    source.add(f"    {result} = None" if nullable else "    raise MalformedRequest('null where a value is needed')")
    source.add(f"elif {length} > size - pos:")
    source.add(f"    raise MalformedRequest(f'length {{{length}}} reaches past the end')")
    source.add("else:")
    source.depth += 1
    if is_array:
        _decode_array(source, get_args(wire)[0], version, result, length)
    else:
        source.add(f"{result} = buf[pos:pos + {length}]{'.decode()' if wire.text else ''}")
        source.add(f"pos += {length}")
    source.depth -= 1
    return result


def _decode_array(source: _Source, element: Any, version: int, result: str, length: str) -> None:
    wire, _ = _wire_type(element)
    source.add(f"left -= {length}")
    source.add("if left < 0:")
    source.add("    raise MalformedRequest('too many elements in the arrays of one request')")
    if isinstance(wire, _Fixed):
        source.add(f"{result} = list(struct.unpack_from(f'>{{{length}}}{wire.char}', buf, pos))")
        source.add(f"pos += {length} * {struct.calcsize('>' + wire.char)}")
        return
    source.add(f"{result} = []")
    source.add(f"for _ in range({length}):")
    source.depth += 1
    source.add(f"{result}.append({_decode_value(source, element, version)})")
    source.depth -= 1


@cache
def _encoder(message: Any, version: int) -> Callable[[Any, Callable[[bytes], None]], None]:
    source = _Source()
    _encode_struct(source, message, version, "value")
    _pack(source)
    source.add("return None")
    return source.build("value, append")  # type: ignore[no-any-return]  # made of source


def _pack(source: _Source) -> None:
    if (taken := source.take_pending()) is not None:
        _, name, expressions = taken
        source.add(f"append({name}.pack({', '.join(expressions)}))")


def _encode_struct(source: _Source, message: type, version: int, value: str) -> None:
    for field, hint, present in fields_of(message, version):
        if present:
            _encode_value(source, hint, version, f"{value}.{field.name}")


def _encode_value(source: _Source, hint: Any, version: int, value: str) -> None:
    wire, nullable = _wire_type(hint)
    if isinstance(wire, _Fixed):
        source.pending.append((wire.char, value))
        return
    is_array = get_origin(wire) is list
    if not is_array and not isinstance(wire, _Sized):
        _encode_struct(source, wire, version, value)
        return
    name = source.fresh()
    prefix, empty = ("i", "()") if is_array else (wire.prefix, "b''")
    plain = value if is_array or not wire.text else f"{value}.encode()"
    source.add(f"{name} = {empty} if {value} is None else {plain}" if nullable else f"{name} = {plain}")
    source.pending.append((prefix, f"-1 if {value} is None else len({name})" if nullable else f"len({name})"))
    _pack(source)
    if is_array:
        _encode_array(source, get_args(wire)[0], version, name)
    else:
        source.add(f"append({name})")


def _encode_array(source: _Source, element: Any, version: int, name: str) -> None:
    wire, _ = _wire_type(element)
    if isinstance(wire, _Fixed):
        source.add(f"append(struct.pack(f'>{{len({name})}}{wire.char}', *{name}))")
        return
    item = source.fresh()
    source.add(f"for {item} in {name}:")
    source.depth += 1
    _encode_value(source, element, version, item)
    _pack(source)
    source.depth -= 1
