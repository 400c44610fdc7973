#!/usr/bin/env python3
"""Single-file .NET programs: the managed files that lie behind a host executable.

  bundle.py extract HOST.EXE FOLDER               unpacks every file of the bundle
  bundle.py make HOST.EXE OUT.EXE MAIN.DLL FOLDER the host of HOST.EXE with our MAIN.DLL and the assemblies of FOLDER

The layout is that of dotnet/runtime, docs/design/features/bundler.md and Microsoft.NET.HostModel.Bundle: an 8-byte offset of the header lies
right before a 32-byte signature in the host; header version 6.
"""
import json
import os
import struct
import sys
import zlib

SIGNATURE = bytes.fromhex("8b1202b96a612038727b930214d7a03213f5b9e6efae3318ee3b2dce24b36aae")
ASSEMBLY, DEPS, RUNTIMECONFIG = 1, 3, 4
RUNTIME = "10.0.9"


class Reader:
    def __init__(self, data, at):
        self.data, self.at = data, at

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values if len(values) > 1 else values[0]

    def text(self):
        length = self.take("<B")
        if length & 0x80:
            length = length & 0x7F | self.take("<B") << 7
        text = self.data[self.at : self.at + length].decode()
        self.at += length
        return text


def files_of(data):
    """(place of the header's offset, [(name, kind, offset, size, compressed size)])"""
    place = data.find(SIGNATURE) - 8
    if place < 0:
        sys.exit("bundle.py: not a single-file host")
    reader = Reader(data, struct.unpack_from("<q", data, place)[0])
    major, _, count = reader.take("<IIi")
    if major != 6:
        sys.exit(f"bundle.py: bundle version {major}, 6 is what this reads")
    reader.text()
    reader.take("<qqqqQ")
    files = []
    for _ in range(count):
        offset, size, compressed = reader.take("<qqq")
        kind = reader.take("<B")
        files.append((reader.text(), kind, offset, size, compressed))
    return place, files


def extract(host, folder):
    data = open(host, "rb").read()
    for name, _, offset, size, compressed in files_of(data)[1]:
        content = data[offset : offset + (compressed or size)]
        if compressed:
            content = zlib.decompress(content, -15)
        if len(content) != size:
            sys.exit(f"bundle.py: {name} is damaged")
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(content)


def make(host, out, main, folder):
    data = open(host, "rb").read()
    place, files = files_of(data)
    bundle = bytearray(data[: min(offset for _, _, offset, _, _ in files)])
    # The host knows its program by a name in a field of fixed size.
    old = (os.path.splitext(os.path.basename(host))[0] + ".dll").encode() + b"\0"
    name = os.path.basename(main)
    at = bundle.find(old)
    while at >= 0:
        bundle[at : at + 64] = name.encode().ljust(64, b"\0")
        at = bundle.find(old, at + 1)

    stem = os.path.splitext(name)[0]
    assemblies = sorted(entry for entry in os.listdir(folder) if entry.endswith(".dll"))
    config = {
        "runtimeOptions": {
            "tfm": "net10.0",
            "includedFrameworks": [{"name": "Microsoft.NETCore.App", "version": RUNTIME}],
        }
    }
    pack = "runtimepack.Microsoft.NETCore.App.Runtime.win-x64"
    version = {"assemblyVersion": "10.0.0.0", "fileVersion": "10.0.9.0"}
    target = ".NETCoreApp,Version=v10.0"
    deps = {
        "runtimeTarget": {"name": target + "/win-x64", "signature": ""},
        "compilationOptions": {},
        "targets": {
            target: {},
            target + "/win-x64": {
                stem + "/1.0.0": {"dependencies": {pack: RUNTIME}, "runtime": {name: {}}},
                f"{pack}/{RUNTIME}": {"runtime": {assembly: version for assembly in assemblies}},
            },
        },
        "libraries": {
            stem + "/1.0.0": {"type": "project", "serviceable": False, "sha512": ""},
            f"{pack}/{RUNTIME}": {"type": "runtimepack", "serviceable": False, "sha512": ""},
        },
    }
    entries = []

    def add(entry, kind, content):
        bundle.extend(bytes(-len(bundle) % 4096))
        entries.append((len(bundle), len(content), kind, entry))
        bundle.extend(content)

    add(stem + ".runtimeconfig.json", RUNTIMECONFIG, json.dumps(config).encode())
    add(stem + ".deps.json", DEPS, json.dumps(deps).encode())
    add(name, ASSEMBLY, open(main, "rb").read())
    for assembly in assemblies:
        add(assembly, ASSEMBLY, open(os.path.join(folder, assembly), "rb").read())

    def text(value):
        value = value.encode()
        length = len(value)
        return bytes([length]) + value if length < 128 else bytes([length & 0x7F | 0x80, length >> 7]) + value

    header = len(bundle)
    bundle += struct.pack("<IIi", 6, 0, len(entries)) + text("stk-examples")
    bundle += struct.pack("<qqqqQ", entries[1][0], entries[1][1], entries[0][0], entries[0][1], 0)
    for offset, size, kind, entry in entries:
        bundle += struct.pack("<qqqB", offset, size, 0, kind) + text(entry)
    bundle[place : place + 8] = struct.pack("<q", header)
    with open(out, "wb") as file:
        file.write(bundle)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "extract":
        extract(*sys.argv[2:])
    elif len(sys.argv) == 6 and sys.argv[1] == "make":
        make(*sys.argv[2:])
    else:
        sys.exit(__doc__)
