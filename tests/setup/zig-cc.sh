#!/usr/bin/env bash
# The C compiler and linker of aarch64-pc-windows-gnullvm: `zig cc`, which brings its own libraries and chooses them itself. Options that name others,
# or that zig's driver does not know, are left out. Needs STK_ZIG (setup_zig).
set -eu
arguments=() links=1 unwinder=-lunwind
for argument in "$@"; do
  case $argument in
    --target=* | -nolibc | --unwindlib=none | -lmingw32 | -lmingwex | -lmsvcrt | -lucrt | -lgcc | -lgcc_eh | -lgcc_s | -l:libpthread.a) ;;
    -Wl,-O1 | -Wl,-Bdynamic | -Wl,-Bstatic | -Wl,--nxcompat | -Wl,--no-undefined-version) ;;
    -Wl,*.def) arguments+=("${argument#-Wl,}") ;;
    *)
      [ "$argument" != -c ] || links=
      [ "$argument" != -nostdlib ] || unwinder=
      arguments+=("$argument")
      ;;
  esac
done
exec "$STK_ZIG" cc -target aarch64-windows-gnu "${arguments[@]}" ${links:+$unwinder}
