# Wine 10 in folders of our own: for x64 and x86 programs, and, emulated, for arm64 ones. Sourced by tests/setup/setup.sh.
#
# The packages come from Debian 13 and are unpacked, not installed. They run in a mount namespace of their own, in which their /usr lies
# over this machine's: every other path means the same inside and outside. A process per folder, the holder, keeps the namespace while
# programs come and go; the scripts `wine` and `wineserver` in the folder start it when it is not there.

# What is done to a root and to its prefix; a change here makes a new one.
STK_WINE10_RECIPE="4 wine-10.0~repack-6"
STK_WINE10_PACKAGES=(libc6 libc-bin libgcc-s1 dash libwine wine64 libunwind8 liblzma5 zlib1g libfreetype6 libpng16-16t64 libbrotli1 libfontconfig1
  libexpat1 libbz2-1.0)

# setup_wine10: makes the folder and the prefix if they are not there, and exports STK_WINE10, a command that runs a 64-bit or a 32-bit
# Windows program, both in one prefix. Several scripts may call it at once.
setup_wine10() {
  local home=${STK_WINE10_DIR:-$STK_TARGET_DIR/wine10}
  export STK_WINE10_DIR=$home STK_WINE10=$home/wine
  setup_wine10_once "$home" setup_wine10_x64_root
}

# setup_wine10_twin: a second prefix and server of that Wine, for tests beside those of the first, in the folder STK_WINE10_TWIN. The files
# of the first prefix are linked: Wine replaces its registry, and writes none of the others.
setup_wine10_twin() {
  local first=${STK_WINE10_DIR:-$STK_TARGET_DIR/wine10} home private=(-m)
  home=$first-twin
  export STK_WINE10_TWIN=$home
  [ "$(cat "$home/.stk-recipe" 2>/dev/null)" != "$STK_WINE10_RECIPE" ] || return 0
  setup_say "making a second Wine prefix in $home/prefix"
  setup_wine10_end "$home"
  setup_wine10_end "$first"
  rm -rf "$home"
  mkdir -p "$home"
  ln -s "$first/root" "$home/root"
  [ "$(id -u)" = 0 ] || private=(-U --map-root-user -m)
  cp -al "$first/prefix" "$home/prefix" && setup_wine10_commands "$home" "${private[*]}" "" "" &&
    printf '%s' "$STK_WINE10_RECIPE" >"$home/.stk-recipe"
}

# As setup_wine_session, for the Wine 10 in this folder. What its server says of a thread that it ends is in server.log.
setup_wine10_session() {
  "$1/wineserver" "-p${2:-30}" </dev/null >/dev/null 2>"$1/server.log" || true
  timeout -k 10 120 "$1/wine" wineboot </dev/null >/dev/null 2>&1 || true
}

# As setup_wine_end, for the Wine 10 in this folder; its holder ends too.
setup_wine10_end() {
  [ -e "$1/wineserver" ] || return 0
  "$1/wineserver" -k </dev/null >/dev/null 2>&1 || true
  timeout 60 "$1/wineserver" -w </dev/null >/dev/null 2>&1 || true
  local holder
  holder=$(cat "$1/holder" 2>/dev/null) || return 0
  if tr '\0' ' ' <"/proc/$holder/cmdline" 2>/dev/null | grep -qF " $1/hold "; then kill "$holder"; fi
  rm -f "$1/holder"
}

# setup_wine10_once HOME ROOT_FUNCTION: the root by that function, then the prefix, unless both are there.
setup_wine10_once() {
  local home=$1 make_root=$2
  mkdir -p "$home"
  [ "$(cat "$home/.stk-recipe" 2>/dev/null)" != "$STK_WINE10_RECIPE" ] || return 0
  (
    flock 9
    [ "$(cat "$home/.stk-recipe" 2>/dev/null)" != "$STK_WINE10_RECIPE" ] || exit 0
    setup_wine10_end "$home"
    "$make_root" "$home" && setup_wine10_prefix "$home" && printf '%s' "$STK_WINE10_RECIPE" >"$home/.stk-recipe"
  ) 9>"$home.lock"
}

setup_wine10_x64_root() {
  local home=$1 root=$1/root wine=$1/root/usr/lib/x86_64-linux-gnu/wine
  setup_say "unpacking Wine 10 into $home"
  setup_wine10_unpack "$home" amd64 libz-mingw-w64 || return 1
  # Of the i386 package the Windows half alone: a 64-bit process runs it.
  mkdir -p "$home/debs" && setup_debian_download "$home/debs" i386 trixie libwine &&
    dpkg-deb --fsys-tarfile "$home"/debs/libwine_*.deb |
    tar -x -C "$wine" --strip-components=5 --wildcards './usr/lib/i386-linux-gnu/wine/i386-windows/*' || return 1
  rm -rf "$home/debs"
  setup_wine10_zlib "$root/usr/x86_64-w64-mingw32/lib/zlib1.dll" "$wine/x86_64-windows" &&
    setup_wine10_zlib "$root/usr/i686-w64-mingw32/lib/zlib1.dll" "$wine/i386-windows" || return 1
  local private=(-m)
  [ "$(id -u)" = 0 ] || private=(-U --map-root-user -m)
  setup_wine10_commands "$home" "${private[*]}" "" ""
}

# setup_wine10_unpack HOME ARCHITECTURE [PACKAGE…]: Wine's packages, and those named, into HOME/root.
setup_wine10_unpack() {
  local home=$1 architecture=$2 deb
  shift 2
  rm -rf "$home/root" "$home/debs"
  mkdir -p "$home/root" "$home/debs"
  setup_debian_download "$home/debs" "$architecture" trixie "${STK_WINE10_PACKAGES[@]}" "$@" || return 1
  for deb in "$home"/debs/*.deb; do dpkg -x "$deb" "$home/root" || return 1; done
  rm -rf "$home/debs"
}

# As libwine's own postinst does: zlib of mingw, marked as a DLL that Wine may load as its own.
setup_wine10_zlib() {
  { head -c 64 "$1" && printf 'Wine builtin DLL' && head -c 16 /dev/zero && tail -c +97 "$1"; } >"$2/$(basename "$1")"
}

# setup_wine10_commands HOME UNSHARE_OPTIONS MOUNTS VARIABLES: writes the scripts `hold`, `enter`, `wine` and `wineserver`. MOUNTS are
# commands for the holder, VARIABLES are assignments for every program.
setup_wine10_commands() {
  local home=$1 private=$2 mounts=$3 variables=$4 user=
  case $private in *-U*) user='-U --preserve-credentials' ;; esac
  cat >"$home/hold" <<SCRIPT
#!/bin/sh
# hold FIFO: sets this namespace up, says so into the fifo's folder, and stays until it is killed.
set -e
$mounts
mount --bind '$home/root/usr' /usr
exec 3<>"\$1"
: >'$home/holding'
read -r never <&3
SCRIPT
  cat >"$home/enter" <<SCRIPT
#!/bin/sh
# enter PROGRAM [ARGUMENT…]: runs it in the holder's namespace, as this process.
held() {
  holder=\$(cat '$home/holder' 2>/dev/null) && tr '\\0' ' ' <"/proc/\$holder/cmdline" 2>/dev/null | grep -qF ' $home/hold '
}
if ! held; then
  exec 9>'$home/holder.lock'
  flock 9
  if ! held; then
    rm -f '$home/holding' '$home/fifo'
    mkfifo '$home/fifo'
    setsid unshare $private --propagation private sh '$home/hold' '$home/fifo' </dev/null >'$home/hold.log' 2>&1 9>&- &
    holder=\$!
    for moment in \$(seq 300); do
      [ ! -e '$home/holding' ] && kill -0 \$holder 2>/dev/null || break
      sleep 0.1
    done
    if [ ! -e '$home/holding' ]; then
      echo "$home: no namespace for this Wine: \$(cat '$home/hold.log')" >&2
      exit 1
    fi
    echo \$holder >'$home/holder'
  fi
  exec 9>&-
fi
# Debian's wineserver 10 aborts where TMPDIR is set.
unset TMPDIR LD_PRELOAD LD_LIBRARY_PATH WINELOADER WINESERVER WINEDLLPATH
export WINEPREFIX='$home/prefix' WINEARCH=win64 WINEDEBUG=\${WINEDEBUG:--all} LC_ALL=C.UTF-8 $variables
export WINEDLLOVERRIDES=\${WINEDLLOVERRIDES:-mscoree,mshtml,winemenubuilder.exe=}
exec nsenter -t "\$holder" $user -m --wdns="\$PWD" "\$@"
SCRIPT
  printf '#!/bin/sh\nexec %s /usr/lib/wine/wine64 "$@"\n' "'$home/enter'" >"$home/wine"
  printf '#!/bin/sh\nexec %s /usr/lib/wine/wineserver "$@"\n' "'$home/enter'" >"$home/wineserver"
  chmod +x "$home/hold" "$home/enter" "$home/wine" "$home/wineserver"
}

# setup_wine10_prefix HOME: makes the prefix, in up to three tries: one of the emulated programs that make an arm64 prefix crashes now and
# then in qemu. The log of each try names the command that failed.
setup_wine10_prefix() {
  local home=$1 log=$1/prefix.log try
  for try in 1 2 3; do
    setup_say "making a Wine prefix in $home/prefix"
    rm -rf "$home/prefix"
    # wineserver and the holder outlive this shell and must not inherit the lock.
    if setup_wine10_try_prefix "$home" </dev/null >"$log" 2>&1 9>&-; then return 0; fi
    setup_say "try $try of 3 failed:"
    tail -n 20 "$log" >&2
    timeout 30 "$home/wineserver" -k </dev/null >/dev/null 2>&1 9>&- || true
  done
  setup_fail "Wine 10 could not make a prefix in $home (log: $log)"
  return 1
}

setup_wine10_try_prefix() {
  setup_wine10_named 300 "$1/wine" wineboot -i &&
    setup_wine10_named 60 "$1/wine" reg add 'HKCU\Software\Wine' /v Version /d win10 /f &&
    # Without a display Wine refuses windows, unless its driver is the one that draws nothing.
    setup_wine10_named 60 "$1/wine" reg add 'HKCU\Software\Wine\Drivers' /v Graphics /d null /f &&
    setup_wine10_named 60 "$1/wineserver" -w
}

# setup_wine10_named SECONDS COMMAND…: runs it, and says how it ended if not well (124: it did not end in time).
setup_wine10_named() {
  local seconds=$1 code=0
  shift
  timeout -k 10 "$seconds" "$@" || code=$?
  [ "$code" = 0 ] || echo "exit code $code: $*"
  return "$code"
}
