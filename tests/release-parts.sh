#!/usr/bin/env bash
# The parts of release.sh that need no release: import libraries, signatures, and the search for paths. Prints one line for each.
#
#   tests/release-parts.sh        in the shell of tests/run.sh: STK_BIN, STK_WINDOWS_BIN, STK_WINDOWS32_BIN, STK_WINE; STK_WINE32 if 32-bit runs
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup/setup.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  printf 'release-parts: %s\n' "$*" >&2
  exit 1
}

# linked NAME DLL MACHINE TARGET: a C program with the import library of DLL, by lld as MSVC's link (NAME is its machine) and by mingw's ld; each in a
# folder.
linked() {
  local name=$1 dll=$2 machine=$3 target=$4
  mkdir -p "$work/$name-lld" "$work/$name-gnu"
  cp "$dll" "$work/$name-lld/" && cp "$dll" "$work/$name-gnu/"
  release_import_library "$dll" "$machine" "clang-19 --target=$target -ffreestanding" "$work/$name.lib"
  printf 'LIBRARY kernel32.dll\nEXPORTS\nCreateFileW%s\nSleep%s\nExitProcess%s\n' $([ "$machine" != i386 ] || echo @28 @4 @4) >"$work/kernel32.def"
  llvm-dlltool-19 -k -m "$machine" -d "$work/kernel32.def" -l "$work/kernel32-$name.lib"
  clang-19 --target="$target" -isystem /usr/share/mingw-w64/include -I "$STK_ROOT/agent/include" -O1 -Wall -Wextra -Werror -ffreestanding \
    -c -o "$work/$name.o" "$STK_ROOT/tests/programs/own_recording.c"
  lld-link-19 "-machine:$name" -entry:begin -subsystem:console -nodefaultlib "-out:$work/$name-lld/own.exe" "$work/$name.o" "$work/$name.lib" \
    "$work/kernel32-$name.lib"
  "$target-gcc" -nostdlib -Wl,-e"$([ "$machine" != i386 ] || echo _)begin" -o "$work/$name-gnu/own.exe" "$work/$name.o" "$work/$name.lib" -lkernel32
}

# records FOLDER WINE: its program records itself, and the trace is whole.
records() {
  (cd "$work/$1" && "$2" own.exe </dev/null >log 2>&1) || fail "$1/own.exe ended with $? under $2: $(tail -n 3 "$work/$1/log")"
  "$STK_BIN" verify "$work/$1/own.stk" >"$work/$1/log" || fail "$1/own.stk: $(cat "$work/$1/log")"
  "$STK_BIN" events "$work/$1/own.stk" | grep -q own_recording || fail "$1/own.stk does not have the program's mark"
  printf 'records itself by its import library: %s\n' "$1"
}

linked x64 "$STK_WINDOWS_BIN/agent.dll" i386:x86-64 x86_64-w64-mingw32
linked x86 "$STK_WINDOWS32_BIN/agent32.dll" i386 i686-w64-mingw32
for linker in lld gnu; do
  records "x64-$linker" "$STK_WINE"
  [ -z "${STK_WINE32:-}" ] || records "x86-$linker" "$STK_WINE32"
done

# A certificate made here signs; what was changed afterwards does not verify; without one it says so.
cd "$work"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj '/CN=stk tests' -addext extendedKeyUsage=codeSigning -keyout key.pem -out own.pem 2>openssl.log ||
  fail "$(cat openssl.log)"
printf 'a password' >password
openssl pkcs12 -export -inkey key.pem -in own.pem -passout file:password -out own.pfx
cp "$STK_WINDOWS_BIN/agent.dll" signed.dll
[ "$(STK_SIGN_PKCS12='' release_sign signed.dll)" = 'not signed: STK_SIGN_PKCS12 names no certificate' ] || fail "an unsigned release does not say so"
cmp -s signed.dll "$STK_WINDOWS_BIN/agent.dll" || fail "a program changed without a certificate"
[ "$(STK_SIGN_PKCS12=own.pfx STK_SIGN_PASSWORD_FILE=password STK_SIGN_ROOTS=own.pem release_sign signed.dll)" = 'signed: signed.dll' ] ||
  fail "a program was not signed"
osslsigncode verify -CAfile own.pem signed.dll >verify.log 2>&1 || fail "the signature does not verify: $(cat verify.log)"
printf 'X' | dd of=signed.dll bs=1 seek=4096 conv=notrunc status=none
! osslsigncode verify -CAfile own.pem signed.dll >verify.log 2>&1 || fail "a changed program verifies"
cp "$STK_WINDOWS_BIN/agent.dll" foreign.dll
! STK_SIGN_PKCS12=own.pfx STK_SIGN_PASSWORD_FILE=password release_sign foreign.dll 2>/dev/null || fail "a signature that nobody trusts was taken"
printf 'signs with the certificate of STK_SIGN_PKCS12\n'

# A path of this machine in a program, plain or in UTF-16, is found.
mkdir clean plain wide
printf 'x/stk/cli/src/main.rs' >clean/a
printf 'x%s/cli/src/main.rs' "$STK_ROOT" >plain/a
printf 'x%s/cli/src/main.rs' "$STK_ROOT" | iconv -t UTF-16LE >wide/a
release_names_no_path clean || fail "a path was found where there is none"
for folder in plain wide; do ! release_names_no_path "$folder" 2>/dev/null || fail "the path in $folder/a was not found"; done
printf 'finds paths of this machine\n'
