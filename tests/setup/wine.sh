# A private Wine prefix. Sourced by tests/setup/setup.sh.

# What is done to a fresh prefix; a change here makes a new one.
STK_WINE_RECIPE="1 win10 bcryptprimitives"

# The 64-bit loader. Debian's `wine` script is passed over: it complains about the absent wine32 at every start.
setup_wine_binary() {
  local candidate
  for candidate in "${STK_WINE:-}" /usr/lib/wine/wine64 wine64 wine; do
    [ -n "$candidate" ] && command -v "$candidate" && return 0
  done
  return 1
}

# setup_wine: exports what running a Windows program here needs (WINEPREFIX and the rest, STK_WINE the loader) and makes the prefix if it is not
# there (about 10 s). Several scripts may call it at once.
setup_wine() {
  STK_WINE=$(setup_wine_binary) || setup_fail "Wine is not installed" || return 1
  export STK_WINE
  export WINEPREFIX=${STK_WINE_PREFIX:-$STK_TARGET_DIR/wine}
  export STK_WINE_PREFIX=$WINEPREFIX
  export WINEARCH=win64
  export WINEDEBUG=${WINEDEBUG:--all}
  # No offer to download Mono or Gecko, no menu entries.
  export WINEDLLOVERRIDES=${WINEDLLOVERRIDES:-mscoree,mshtml,winemenubuilder.exe=}
  # Wine takes the encoding of file names from the locale; C would lose plugin_ä.dll.
  export LC_ALL=C.UTF-8
  local stamp="$WINEPREFIX/.stk-recipe"
  mkdir -p "$(dirname "$WINEPREFIX")"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$STK_WINE_RECIPE" ]; then
    (
      flock 9
      [ "$(cat "$stamp" 2>/dev/null)" = "$STK_WINE_RECIPE" ] || setup_wine_prefix "$stamp"
    ) 9>"$WINEPREFIX.lock" || return 1
  fi
}

setup_wine_prefix() {
  local stamp=$1 log="$WINEPREFIX.log"
  setup_say "making a Wine prefix in $WINEPREFIX"
  rm -rf "$WINEPREFIX"
  if ! {
    timeout 180 "$STK_WINE" wineboot -i &&
      "$STK_WINE" reg add 'HKCU\Software\Wine' /v Version /d win10 /f &&
      x86_64-w64-mingw32-gcc -O1 -shared -s -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" \
        "$STK_ROOT/tests/setup/bcryptprimitives.c" -ladvapi32 &&
      # The registry is on disk only when the server has gone.
      timeout 60 wineserver -w
  } </dev/null >"$log" 2>&1 9>&-; then # wineserver outlives this shell and must not inherit the lock
    tail -n 20 "$log" >&2
    setup_fail "Wine could not make a prefix (log: $log)"
    return 1
  fi
  printf '%s' "$STK_WINE_RECIPE" >"$stamp"
}

# setup_recorder: what recording a program under Wine needs: packages, Wine, and the recorder for x64 in the folder STK_WINDOWS_BIN, built
# unless that is set already.
setup_recorder() {
  setup_packages windows wine && setup_rust_target "$STK_WINDOWS_TARGET" && setup_wine || return 1
  [ -z "${STK_WINDOWS_BIN:-}" ] || return 0
  setup_build_recorder -q "$STK_WINDOWS_TARGET" && STK_WINDOWS_BIN=$(setup_windows_bin "$STK_WINDOWS_TARGET")
}

# setup_wine_session [SECONDS]: one wineserver for the commands that follow, with nothing of ours open: the first Wine program starts services
# that would hold the caller's output pipes open. It goes SECONDS (30) after its last program. Without it each server goes with its last
# program and takes along whatever is just ending: programs then now and then die by a signal, after their last line.
setup_wine_session() {
  wineserver "-p${1:-30}" </dev/null >/dev/null 2>&1 || true
  timeout -k 10 120 "$STK_WINE" wineboot </dev/null >/dev/null 2>&1 || true
}

# Ends the session of this prefix and every program in it.
setup_wine_end() {
  wineserver -k </dev/null >/dev/null 2>&1 || true
  timeout 60 wineserver -w </dev/null >/dev/null 2>&1 || true
}
