# Debian packages. Sourced by tests/setup/setup.sh.

setup_say() { printf 'setup: %s\n' "$*" >&2; }
setup_fail() {
  printf 'setup: %s\n' "$*" >&2
  return 1
}

# Runs a command as root: directly, or through sudo.
setup_as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    setup_fail "this must be run as root, and there is no sudo here: $*"
  fi
}

# setup_packages GROUP…: installs what is missing for `windows` (build the Windows side), `windows32` (its 32-bit recorder), `wine` (run it),
# `test` (fetch and check third-party programs), `java` (Spark), `release` (zip; strip for arm64; signatures). Silent and quick when everything is there.
setup_packages() {
  local group missing=()
  for group in "$@"; do
    case $group in
      windows)
        setup_need c++ g++ # with gcc as cc
        [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
        setup_need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64
        setup_need x86_64-w64-mingw32-g++ g++-mingw-w64-x86-64
        setup_need clang-19 clang-19
        setup_need ld.lld-19 lld-19
        ;;
      windows32) setup_need i686-w64-mingw32-gcc gcc-mingw-w64-i686 ;;
      wine)
        setup_wine_binary >/dev/null || missing+=(wine wine64)
        ;;
      test)
        setup_need llvm-readobj-19 llvm-19
        setup_need python3 python3
        python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
        python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
        setup_need npm npm
        setup_need perf linux-perf
        setup_need chromium chromium
        ;;
      java) setup_need java default-jre-headless ;;
      release)
        setup_need zip zip
        setup_need llvm-strip-19 llvm-19
        setup_need osslsigncode osslsigncode
        # tests/fetch.sh gets arm64's linker through it.
        python3 -m pip --version >/dev/null 2>&1 || missing+=(python3 python3-pip)
        ;;
      *) setup_fail "no such package group: $group" || return 1 ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    setup_fail "needed, and not installed: ${missing[*]} (the names of Debian 12's packages; there is no apt-get here to install them)"
    return 1
  fi
  setup_say "installing with apt-get: ${missing[*]}"
  setup_apt_get update && setup_apt_get install -y --no-install-recommends "${missing[@]}"
}

# setup_need COMMAND PACKAGE: notes the package in the caller's `missing` if the command is not there.
setup_need() { command -v "$1" >/dev/null || missing+=("$2"); }

# apt-get, quiet unless it fails.
setup_apt_get() {
  local log
  log=$(mktemp)
  if setup_as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null >"$log" 2>&1; then
    rm -f "$log"
  else
    tail -n 20 "$log" >&2
    rm -f "$log"
    setup_fail "apt-get $1 failed"
  fi
}
