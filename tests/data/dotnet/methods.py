#!/usr/bin/env python3
"""Lists the methods in a NetTrace stream (version 4): an oracle for stk's reader, written apart from it.

    tests/data/dotnet/methods.py STREAM.nettrace[.gz] MODULE > MODULE.methods.txt

A line for each method event of MODULE and of dynamic code, in stream order: start, size, token, flags, type, name, signature, and
how many entries the IL map beside it has, with their sums. Before them the numbers of all methods and of all with maps.
"""
import gzip
import struct
import sys


def blocks(data):
    at = 8
    (length,) = struct.unpack_from("<i", data, at)
    assert data[:8] == b"Nettrace" and data[at + 4 : at + 4 + length] == b"!FastSerialization.1"
    at += 4 + length
    while data[at] != 1:
        assert data[at : at + 3] == b"\x05\x05\x01"
        _, _, length = struct.unpack_from("<iii", data, at + 3)
        at += 15
        name = data[at : at + length].decode()
        at += length + 1
        if name == "Trace":
            at += 48
        else:
            (size,) = struct.unpack_from("<i", data, at)
            at = (at + 4 + 3) & ~3
            yield name, data[at : at + size]
            at += size
        assert data[at] == 6
        at += 1


def number(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def events(block):
    at, flags = struct.unpack_from("<HH", block)
    assert flags & 1
    kind = thread = size = 0
    while at < len(block):
        flags = block[at]
        at += 1
        if flags & 1:
            kind, at = number(block, at)
        if flags & 2:
            for _ in range(3):
                _, at = number(block, at)
        if flags & 4:
            thread, at = number(block, at)
        if flags & 8:
            _, at = number(block, at)
        _, at = number(block, at)
        at += 16 * bool(flags & 16) + 16 * bool(flags & 32)
        if flags & 128:
            size, at = number(block, at)
        yield kind & 0x7FFFFFFF, thread, block[at : at + size]
        at += size


def text(data, at):
    end = at
    while data[end : end + 2] != b"\0\0":
        end += 2
    return data[at:end].decode("utf-16le"), end + 2


def main():
    with open(sys.argv[1], "rb") as file:
        data, wanted = file.read(), sys.argv[2]
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    kinds, modules, methods, before = {}, {}, [], {}
    for name, block in blocks(data):
        if name == "MetadataBlock":
            for _, _, payload in events(block):
                provider, at = text(payload, 4)
                kinds[struct.unpack_from("<i", payload)[0]] = (provider, struct.unpack_from("<i", payload, at)[0])
        if name == "EventBlock":
            for kind, thread, payload in events(block):
                provider, number_ = kinds[kind]
                if not provider.endswith("Rundown"):
                    continue
                if number_ == 150:
                    method, _, _, count = struct.unpack_from("<QQBH", payload)
                    il = struct.unpack_from("<%di" % count, payload, 19)
                    native = struct.unpack_from("<%di" % count, payload, 19 + 4 * count)
                    before[thread] = (method, il, native)
                if number_ == 154:
                    (module,) = struct.unpack_from("<Q", payload)
                    modules[module] = text(payload, 24)[0].split("\\")[-1].rsplit(".", 1)[0]
                if number_ == 144:
                    fields = struct.unpack_from("<QQQIII", payload)
                    space, at = text(payload, 36)
                    name_, at = text(payload, at)
                    signature, at = text(payload, at)
                    known = before.pop(thread, None)
                    lines = known if known and known[0] == fields[0] else None
                    methods.append((fields, space, name_, signature, lines))
    print("methods", len(methods), "with maps", sum(1 for m in methods if m[4]))
    for (_, module, start, size, token, flags), space, name_, signature, lines in methods:
        module = "dynamicClass" if flags & 1 else modules.get(module, "?")
        if module in (wanted, "dynamicClass"):
            counts = "-" if lines is None else "%d,%d,%d" % (len(lines[1]), sum(lines[1]), sum(lines[2]))
            print("%x %x %x %x" % (start, size, token, flags), module, counts, space, name_, signature, sep="\t")


main()
