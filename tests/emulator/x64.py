#!/usr/bin/env python3
"""Runs functions of an x64 PE file in the Unicorn emulator and writes states with their true callers.

    tests/emulator/x64.py PE OUT SECONDS [SEED]

The truth is a shadow stack: an entry is made when a CALL pushed its return address, and counts only if control really
returned there with every nonvolatile register intact. `.pdata` serves only to choose where to begin and to tag states.
Arguments are dummies and imports are stubs, so many runs end in a fault; only frames that returned are written.

OUT has the layout of tests/src/oracle/layout.rs, uncompressed. The modules unicorn and capstone are those that
tests/fetch.sh fetches."""
import bisect
import os
import random
import struct
import sys
import time

CACHE = os.environ.get("STK_FETCH_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.cache")
sys.path[:0] = [os.path.join(CACHE, "unicorn"), os.path.join(CACHE, "capstone")]

from capstone import CS_ARCH_X86, CS_MODE_64, Cs  # noqa: E402
from unicorn import UC_ARCH_X86, UC_HOOK_CODE, UC_MODE_64, Uc, UcError  # noqa: E402
from unicorn import x86_const as x86  # noqa: E402

# Where the machine's own things lie. The harness returns to RETURNS.
STACK, STACK_SIZE, TEB, SCRATCH, STUBS, RETURNS = 0x2000000000, 0x100000, 0x7FF000000000, 0x3000000000, 0x4000000000, 0x5000000000
POINTERS, TARGETS, ZEROS = SCRATCH, SCRATCH + 0x10000, SCRATCH + 0x20000
REGISTERS = [getattr(x86, "UC_X86_REG_" + name) for name in "RAX RCX RDX RBX RSP RBP RSI RDI R8 R9 R10 R11 R12 R13 R14 R15".split()]
NONVOLATILE = [3, 5, 6, 7, 12, 13, 14, 15]
MOST_STEPS, MOST_OF_STACK, MOST_OF_PLACE, MOST_OF_FUNCTION = 2500, 12 << 10, 2, 60
PROLOG, BODY, NO_PDATA, CHAINED, FRAME_REGISTER, VERSION_2, HANDLER = 1, 2, 8, 16, 32, 512, 1024


class Image:
    """A PE32+ file mapped at its preferred base."""

    def __init__(self, path):
        file = open(path, "rb").read()
        nt = struct.unpack_from("<I", file, 0x3C)[0]
        sections, optional_size = struct.unpack_from("<H", file, nt + 6)[0], struct.unpack_from("<H", file, nt + 20)[0]
        optional = nt + 24
        if struct.unpack_from("<H", file, optional)[0] != 0x20B:
            sys.exit(f"{path}: not a PE32+ file")
        self.base = struct.unpack_from("<Q", file, optional + 24)[0]
        size, headers = struct.unpack_from("<II", file, optional + 56)
        self.size = (size + 0xFFF) & ~0xFFF
        self.bytes = bytearray(self.size)
        self.bytes[:headers] = file[:headers]
        self.writable = []
        for n in range(sections):
            virtual, rva, raw, place, flags = struct.unpack_from("<IIII12xI", file, optional + optional_size + 40 * n + 8)
            self.bytes[rva:rva + raw] = file[place:place + raw]
            if flags & 0x80000000:
                self.writable.append((rva, min(max(virtual, raw), self.size - rva)))
        del self.bytes[self.size:]
        imports, exceptions = (struct.unpack_from("<II", file, optional + 112 + 8 * n) for n in (1, 3))
        self.imports = list(self.import_slots(imports[0]))
        entries = struct.iter_unpack("<III", self.bytes[exceptions[0]:exceptions[0] + exceptions[1] // 12 * 12])
        self.functions = sorted(entry for entry in entries if entry[0] < entry[1] and not entry[2] & 1)
        self.starts = [entry[0] for entry in self.functions]

    def import_slots(self, rva):
        while rva and struct.unpack_from("<I", self.bytes, rva + 12)[0]:
            slot = struct.unpack_from("<I", self.bytes, rva + 16)[0]
            while struct.unpack_from("<Q", self.bytes, slot)[0]:
                yield slot
                slot += 8
            rva += 20

    def function(self, rva):
        at = bisect.bisect_right(self.starts, rva) - 1
        return self.functions[at] if at >= 0 and rva < self.functions[at][1] else None

    def tags(self, rva):
        entry = self.function(rva)
        if not entry:
            return 0, NO_PDATA | BODY
        head, prolog, _, frame = self.bytes[entry[2]:entry[2] + 4]
        chained = head >> 3 & 4
        flags = PROLOG if rva - entry[0] < prolog and not chained else BODY
        flags |= (CHAINED if chained else 0) | (HANDLER if head >> 3 & 3 else 0)
        return entry[0], flags | (FRAME_REGISTER if frame & 15 else 0) | (VERSION_2 if head & 7 == 2 else 0)


class Machine:
    def __init__(self, image, seed):
        self.image, self.random = image, random.Random(seed)
        self.cpu = Uc(UC_ARCH_X86, UC_MODE_64)
        for base, size in (image.base, image.size), (STACK, STACK_SIZE), (TEB, 0x10000), (SCRATCH, 0x40000), (STUBS, 0x10000), (RETURNS, 0x1000):
            self.cpu.mem_map(base, size)
        self.cpu.mem_write(image.base, bytes(image.bytes))
        self.cpu.mem_write(RETURNS, b"\xf4" * 0x1000)
        # xor eax, eax; ret and mov rax, ZEROS; ret: what imports and dummy pointers lead to.
        self.cpu.mem_write(STUBS, (b"\x31\xc0\xc3" + b"\x90" * 13) * 256 + (b"\x48\xb8" + struct.pack("<Q", ZEROS) + b"\xc3" + b"\x90" * 5) * 256)
        self.pattern = self.random.randbytes(0x20000)
        self.disassembler, self.calls = Cs(CS_ARCH_X86, CS_MODE_64), {}
        self.places, self.of_function, self.states = {}, {}, []
        self.cpu.hook_add(UC_HOOK_CODE, self.step)

    def reset(self, variant):
        write, stub = self.cpu.mem_write, STUBS + 0x1000 * (variant & 1)
        for rva, size in self.image.writable:
            write(self.image.base + rva, bytes(self.image.bytes[rva:rva + size]))
        for n, slot in enumerate(self.image.imports):
            write(self.image.base + slot, struct.pack("<Q", stub + 16 * (n % 256)))
        write(STACK + STACK_SIZE - len(self.pattern), self.pattern)
        write(POINTERS, struct.pack("<Q", TARGETS) * 0x2000)
        write(TARGETS, struct.pack("<Q", stub) * 0x2000)
        write(ZEROS, bytes(0x20000))
        write(TEB, bytes(0x10000))
        for place, value in (8, STACK + STACK_SIZE), (16, STACK), (0x30, TEB), (0x58, TEB + 0x2000), (0x60, TEB + 0x1000):
            write(TEB + place, struct.pack("<Q", value))
        write(TEB + 0x2000, struct.pack("<Q", ZEROS + 0x1000) * 64)

    def is_call(self, address, size):
        if address not in self.calls:
            instruction = next(self.disassembler.disasm(bytes(self.cpu.mem_read(address, size)), address), None)
            self.calls[address] = bool(instruction) and instruction.mnemonic == "call"
        return self.calls[address]

    def step(self, cpu, address, size, _):
        registers = cpu.reg_read_batch(REGISTERS)
        rsp, frames = registers[4], self.frames
        if self.called and rsp == self.called[1] - 8 and struct.unpack("<Q", cpu.mem_read(rsp, 8))[0] == self.called[0]:
            frames.append((rsp, self.called[0], [registers[n] for n in NONVOLATILE], []))
        self.called = None
        while frames and rsp > frames[-1][0]:
            slot, returns, nonvolatile, met = frames.pop()
            if (address, rsp, [registers[n] for n in NONVOLATILE]) != (returns, slot + 8, nonvolatile):
                return cpu.emu_stop()
            self.states += met
        self.steps += 1
        if not frames or self.steps > MOST_STEPS or not STACK <= rsp < STACK + STACK_SIZE:
            return cpu.emu_stop()
        if self.is_call(address, size):
            self.called = (address + size, rsp)
        rva, (slot, returns, nonvolatile, met) = address - self.image.base, frames[-1]
        if not 0 <= rva < self.image.size or slot - rsp >= MOST_OF_STACK:
            return None
        function, flags = self.image.tags(rva)
        place = (rva, slot - rsp)
        if self.places.get(place, 0) >= MOST_OF_PLACE or self.of_function.get(function, 0) >= MOST_OF_FUNCTION:
            return None
        self.places[place] = self.places.get(place, 0) + 1
        self.of_function[function] = self.of_function.get(function, 0) + 1
        stack = bytes(cpu.mem_read(rsp, min(slot + 40, STACK + STACK_SIZE) - rsp))
        met.append(struct.pack("<IIHHI16Q10Q", rva, function, flags, len(frames), len(stack), *registers, returns, slot + 8, *nonvolatile) + stack)
        return None

    def run(self, rva, variant):
        self.reset(variant)
        arguments = ((0, 0, 0, 0), (POINTERS, POINTERS + 0x100, 8, POINTERS + 0x200), (ZEROS + 0x4000, ZEROS + 0x8000, 4, 2),
                     (POINTERS, ZEROS + 0x4000, 1, ZEROS + 0x8000))[variant]
        values = [ZEROS + 0x100] * 16
        for n in NONVOLATILE:
            values[n] = self.random.getrandbits(62) | 0x5A5A000000000001
        values[1], values[2], values[8], values[9] = arguments
        values[4] = STACK + STACK_SIZE - 0x2008 - 16 * self.random.randrange(64)
        returns = RETURNS + 16 * self.random.randrange(200)
        self.cpu.mem_write(values[4], struct.pack("<Q", returns))
        for register, value in zip(REGISTERS, values):
            self.cpu.reg_write(register, value)
        self.cpu.reg_write(x86.UC_X86_REG_EFLAGS, 0x202)
        self.cpu.reg_write(x86.UC_X86_REG_GS_BASE, TEB)
        self.frames, self.called, self.steps = [(values[4], returns, [values[n] for n in NONVOLATILE], [])], None, 0
        try:
            self.cpu.emu_start(self.image.base + rva, 0, timeout=400000, count=3000)
        except UcError:
            pass


def main():
    path, out, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    image = Image(path)
    machine = Machine(image, int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    # Half of the functions have the rarest kinds of unwind data.
    begins = [entry for entry in image.functions if not image.bytes[entry[2]] >> 3 & 4]
    machine.random.shuffle(begins)
    kind = lambda entry: (image.tags(entry[1] - 1)[1], frozenset(code & 15 for code in image.bytes[entry[2] + 5:entry[2] + 4 + 2 * image.bytes[entry[2] + 2]:2]))
    common = {}
    for entry in begins:
        common[kind(entry)] = common.get(kind(entry), 0) + 1
    rare = sorted(begins, key=lambda entry: common[kind(entry)])
    end = time.monotonic() + seconds
    for pair in zip(rare, begins):
        for entry in pair:
            for variant in range(4):
                if time.monotonic() < end:
                    machine.run(entry[0], variant)
    with open(out, "wb") as file:
        file.write(struct.pack("<4sIQQI", b"H5UW", 1, image.base, image.size, len(machine.states)) + b"".join(machine.states))
    print(len(machine.states), "states")


main()
