# A private 32-bit Wine. Sourced by tests/setup/setup.sh.
#
# Debian's wine32 cannot be installed on every machine beside the 64-bit Wine. Its packages are unpacked into a folder of our own
# instead, and run from there with a prefix of their own: a 32-bit and a 64-bit process cannot share one here. Of the i386
# architecture only the C library is installed.

# What is done to the folder and to its prefix; a change here makes a new one.
STK_WINE32_RECIPE="1 win10 bcryptprimitives"
# Without fontconfig Wine 8 calls through a null pointer when user32 is loaded, and no program comes up.
STK_WINE32_PACKAGES=(wine32 libwine libunwind8 liblzma5 zlib1g libfreetype6 libpng16-16 libbrotli1 libfontconfig1 libexpat1 libuuid1)

# setup_wine32: makes the folder and the prefix if they are not there and exports STK_WINE32, a command that runs a 32-bit Windows
# program as $STK_WINE runs a 64-bit one. Several scripts may call it at once. Needs i686-w64-mingw32-gcc.
setup_wine32() {
  local home=${STK_WINE32_DIR:-$STK_TARGET_DIR/wine32}
  export STK_WINE32_DIR=$home STK_WINE32=$home/wine
  mkdir -p "$home"
  [ "$(cat "$home/.stk-recipe" 2>/dev/null)" = "$STK_WINE32_RECIPE" ] && [ -e /lib/ld-linux.so.2 ] && return 0
  (
    flock 9
    [ "$(cat "$home/.stk-recipe" 2>/dev/null)" = "$STK_WINE32_RECIPE" ] && [ -e /lib/ld-linux.so.2 ] && exit 0
    setup_i386_packages && setup_wine32_root "$home" && setup_wine32_prefix "$home" &&
      printf '%s' "$STK_WINE32_RECIPE" >"$home/.stk-recipe"
  ) 9>"$home.lock"
}

# As setup_wine_session, for 32-bit programs.
setup_wine32_session() {
  "$STK_WINE32_DIR/wineserver" "-p${1:-30}" </dev/null >/dev/null 2>&1 || true
  timeout -k 10 120 "$STK_WINE32" wineboot </dev/null >/dev/null 2>&1 || true
}

# As setup_wine_end, for 32-bit programs.
setup_wine32_end() {
  "$STK_WINE32_DIR/wineserver" -k </dev/null >/dev/null 2>&1 || true
  timeout 60 "$STK_WINE32_DIR/wineserver" -w </dev/null >/dev/null 2>&1 || true
}

# apt knows the i386 packages, and their C library is installed.
setup_i386_packages() {
  if ! dpkg --print-foreign-architectures | grep -qx i386; then
    setup_say "dpkg --add-architecture i386"
    setup_as_root dpkg --add-architecture i386 || return 1
  fi
  if ! apt-cache policy libwine:i386 2>/dev/null | grep -q 'Candidate: [0-9]'; then
    # One of several sources that fails (a mirror being renewed) may not be the one that is needed.
    setup_apt_get update || setup_say "going on with the lists that came"
  fi
  [ -e /lib/ld-linux.so.2 ] && return 0
  setup_say "installing with apt-get: libc6:i386 libgcc-s1:i386"
  setup_apt_get install -y --no-install-recommends libc6:i386 libgcc-s1:i386
}

# The packages, unpacked, with the commands `wine` and `wineserver` beside them.
setup_wine32_root() {
  local home=$1 root=$1/root debs=$1/debs deb zlib
  [ "$(cat "$root/.complete" 2>/dev/null)" = "${STK_WINE32_PACKAGES[*]}" ] && return 0
  setup_say "unpacking a 32-bit Wine into $home"
  rm -rf "$root" "$debs"
  mkdir -p "$root" "$debs"
  (cd "$debs" && apt-get -q -o APT::Sandbox::User=root download "${STK_WINE32_PACKAGES[@]/%/:i386}") >"$home/log" 2>&1 || {
    tail -n 5 "$home/log" >&2
    setup_fail "the packages of the 32-bit Wine could not be downloaded"
    return 1
  }
  for deb in "$debs"/*.deb; do dpkg -x "$deb" "$root" || return 1; done
  rm -rf "$debs"
  # As libwine's own postinst does: zlib of mingw, marked as a DLL that Wine may load as its own.
  zlib=$(echo /usr/i686-w64-mingw32/lib/zlib*.dll)
  [ -e "$zlib" ] || setup_fail "zlib1.dll of libz-mingw-w64 (comes with Debian's wine) is not there" || return 1
  { head -c 64 "$zlib" && printf 'Wine builtin DLL' && head -c 16 /dev/zero && tail -c +97 "$zlib"; } \
    >"$root/usr/lib/i386-linux-gnu/wine/i386-windows/$(basename "$zlib")"
  setup_wine32_command "$root" wine >"$home/wine"
  setup_wine32_command "$root" wineserver32 >"$home/wineserver"
  chmod +x "$home/wine" "$home/wineserver"
  printf '%s' "${STK_WINE32_PACKAGES[*]}" >"$root/.complete"
}

# A script that runs one of Wine's programs, whatever the environment says of the 64-bit one.
setup_wine32_command() {
  local root=$1 program=$2 home=${1%/root}
  cat <<SCRIPT
#!/bin/sh
export WINEPREFIX='$home/prefix' WINEARCH=win32 WINEDEBUG=\${WINEDEBUG:--all} LC_ALL=C.UTF-8
export WINEDLLOVERRIDES=\${WINEDLLOVERRIDES:-mscoree,mshtml,winemenubuilder.exe=}
export WINELOADER='$root/usr/lib/wine/wine' WINESERVER='$root/usr/lib/wine/wineserver32'
export LD_LIBRARY_PATH='$root/usr/lib/i386-linux-gnu:$root/lib/i386-linux-gnu:$root/usr/lib/i386-linux-gnu/wine/i386-unix'
exec '$root/usr/lib/wine/$program' "\$@"
SCRIPT
}

setup_wine32_prefix() {
  local home=$1 prefix=$1/prefix log=$1/prefix.log
  setup_say "making a 32-bit Wine prefix in $prefix"
  rm -rf "$prefix"
  if ! {
    timeout 180 "$home/wine" wineboot -i &&
      "$home/wine" reg add 'HKCU\Software\Wine' /v Version /d win10 /f &&
      i686-w64-mingw32-gcc -O1 -shared -s -Wl,--kill-at -o "$prefix/drive_c/windows/system32/bcryptprimitives.dll" \
        "$STK_ROOT/tests/setup/bcryptprimitives.c" -ladvapi32 &&
      timeout 60 "$home/wineserver" -w
  } </dev/null >"$log" 2>&1 9>&-; then # wineserver outlives this shell and must not inherit the lock
    tail -n 20 "$log" >&2
    # A Wine that cannot start starts its desktop again and again.
    "$home/wineserver" -k </dev/null >/dev/null 2>&1 || true
    setup_fail "the 32-bit Wine could not make a prefix (log: $log)"
    return 1
  fi
}
