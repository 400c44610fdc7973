#!/usr/bin/env bash
# Names, files, lines and inline depth against llvm-symbolizer-19, at addresses spread over the code of programs that it builds:
# g++ -O2, Rust windows-gnu, clang-cl with a PDB (x64, x86), and Go, whole and stripped, where a toolchain is found.
#
#   tests/symbols-llvm.sh STK [N]     N addresses a program (default 1000)
#
#   STK_GO=go                         the Go toolchain
#
# Prints one line a program. Fails at any difference in depth, file or line, and at a name that none of the known reasons explains.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
stk=$(realpath "${1:?usage: tests/symbols-llvm.sh STK [N]}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
cp "$here"/programs/names.{cpp,rs,go} "$work"
cd "$work"
x86_64-w64-mingw32-g++ -O2 -g -std=c++17 -static names.cpp -o gcc.exe
x86_64-w64-mingw32-objcopy --compress-debug-sections gcc.exe gcc-compressed.exe
rustc --target x86_64-pc-windows-gnu -O -g names.rs -o rust.exe
pairs=(gcc.exe gcc.exe gcc-compressed.exe gcc.exe rust.exe rust.exe)
python3 - <<'PY'
source = '''
volatile int sink; extern "C" int _fltused = 1;
template<int N> struct L { static __forceinline int f(int x) { if (x > N) { int k = L<N-1>::f(x - 1); sink += k; return k * N; } return x + N; } };
template<> struct L<0> { static __forceinline int f(int x) { sink = x; return x; } };
namespace { template<class T> __declspec(noinline) T hidden(T a) { T s = 0; for (T i = 0; i < a; i++) { { T t = i * 3; s += L<3>::f((int)t); } } return s; } }
'''
for i in range(120):
    source += f'''
static __declspec(noinline) int stat{i}(int a) {{ int s = {i}; for (int i = 0; i < a; i++) s += L<{i % 5 + 1}>::f(i + s); return s; }}
struct S{i} {{ int v; __declspec(noinline) int m(int a) const {{ auto g = [a](int b) {{ return L<2>::f(a + b); }}; return g(v) + stat{i}(a); }} }};
extern "C" __declspec(dllexport) int e{i}(int a) {{ S{i} s{{a}}; return s.m(a) + (int)hidden<long long>(a) + hidden<int>(a); }}
'''
open('cl.cpp', 'w').write(source)
PY
for machine in x86_64 i686; do
  clang-19 --driver-mode=cl --target=$machine-pc-windows-msvc /O2 /Z7 /GS- /c cl.cpp "/Focl-$machine.obj"
  lld-link-19 /dll /noentry /nodefaultlib /safeseh:no /debug "/out:cl-$machine.dll" "cl-$machine.obj"
  pairs+=("cl-$machine.dll" "cl-$machine.dll")
done
if command -v "${STK_GO:-go}" >/dev/null; then
  printf 'module names\n\ngo 1.18\n' >go.mod
  for machine in amd64 386; do
    go_build() { GOFLAGS=-mod=mod CGO_ENABLED=0 GOOS=windows GOARCH=$machine GOCACHE=$work/go "${STK_GO:-go}" build "$@" names.go; }
    go_build -ldflags=-compressdwarf=false -o "go-$machine.exe"
    go_build -o "go-compressed-$machine.exe"
    go_build -ldflags='-s -w' -o "go-stripped-$machine.exe"
    for kind in "" compressed- stripped-; do pairs+=("go-$kind$machine.exe" "go-$machine.exe"); done
  done
fi
python3 - "$stk" "${2:-1000}" "${pairs[@]}" <<'PY'
import collections, json, re, struct, subprocess, sys

stk, number, pairs = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

def image(path):
    """Preferred address, executable parts, and the functions of the unwind data (x64)."""
    data = open(path, 'rb').read()
    at = struct.unpack_from('<I', data, 0x3c)[0] + 24
    wide = struct.unpack_from('<H', data, at)[0] == 0x20b
    base = struct.unpack_from('<Q' if wide else '<I', data, at + (24 if wide else 28))[0]
    count, headers = struct.unpack_from('<H', data, at - 18)[0], at + struct.unpack_from('<H', data, at - 4)[0]
    sections = [struct.unpack_from('<8sIIII12xI', data, headers + 40 * n) for n in range(count)]
    code = [(rva, rva + min(size, stored)) for _, size, rva, stored, _, flags in sections if flags & 0x20000000]
    table = [(at, min(size, stored)) for name, size, _, stored, at, _ in sections if name.startswith(b'.pdata')] if wide else []
    functions = [struct.unpack_from('<II', data, at + n) for at, size in table for n in range(0, size - 11, 12)]
    return base, code, sorted(f for f in functions if f[0])

def answers(path, judge):
    base, code, functions = image(path)
    if functions:
        code = functions
    total, rvas = sum(to - start for start, to in code), []
    for n in range(number):
        left = int((n + 0.5) * total / number)
        for start, to in code:
            if left < to - start:
                rvas.append(start + left)
                break
            left -= to - start
    run = lambda command, lines: subprocess.run(command, input='\n'.join(lines), capture_output=True, text=True, check=True).stdout.splitlines()
    ours = run([stk, 'symbols', 'lookup', '--offline', '--json', '--demangle', 'none', path, '-'], [f'{rva:x}' for rva in rvas])
    theirs = run(['llvm-symbolizer-19', '--obj=' + judge, '--output-style=JSON', '--no-demangle'], [f'{rva + base:#x}' for rva in rvas])
    return zip(rvas, map(json.loads, ours), map(json.loads, theirs), strict=True)

def same_function(name, other, aliases):
    """Whether a name of the symbol table or of a public stands for the name of the record."""
    # Go's own table shortens type arguments.
    if '[...]' in name and re.sub(r'\[.*\]', '[...]', other) == name:
        return True
    if re.sub(r'(\.(isra|constprop|part|cold|llvm|abi0|lto_priv)(\.\d+)*)+$', '', other) == name or other in aliases or other == '_' + name:
        return True
    shown = subprocess.run(['llvm-undname-19', other], capture_output=True, text=True).stdout if other.startswith('?') else ''
    return name.replace(' ', '') in shown.replace(' ', '')

failed = False
for path, judge in zip(pairs[::2], pairs[1::2]):
    counts, examples = collections.Counter(), []
    for rva, mine, his in answers(path, judge):
        frame = lambda name, file, line: (name, (file or '').replace('\\', '/').replace('./<auto', '<auto') if line else '', line or 0)
        ours = [frame(f['function'], f['file'], f['line']) for f in mine['frames'] if mine['source'] != 'export']
        theirs = [frame(f['FunctionName'], f['FileName'], f['Line']) for f in his.get('Symbol', [])]
        theirs = [f for f in theirs if f[0] or f[1]]
        if ours == theirs:
            kind = 'equal'
        elif not ours and len(theirs) == 1:
            kind = 'behind a function, its neighbour for llvm'
        elif [f[1:] for f in ours] == [f[1:] for f in theirs] and ours[:-1] == theirs[:-1] and same_function(ours[-1][0], theirs[-1][0], mine.get('aliases', [])):
            kind = 'equal except for the form of the outermost name'
        else:
            kind = 'different'
            examples.append((f'{rva:#x}', ours, theirs))
        counts[kind] += 1
    print(f'{path}: ' + ', '.join(f'{count} {kind}' for kind, count in counts.most_common()))
    for example in examples[:4]:
        print('  ', *example, sep='\n    ')
    failed |= bool(examples)
sys.exit(failed)
PY
