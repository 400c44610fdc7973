# Rust's std for Windows targets. Sourced by tests/setup/setup.sh.
#
# Two ways: `rustup target add`, or, where rustup is absent or cannot download, std built from its source (`-Zbuild-std`), which is
# taken from rustup's or Debian's rust-src. STK_NO_RUSTUP_TARGET=1 goes the second way at once: to test it.

# One selection of packages for all that runs on the host, so that nothing is compiled twice with other features. Without the benchmarks: their
# peers ask for features with which `cargo build -p stk`, as in examples/demo.sh, would compile polars again.
STK_SELECTION=(--workspace --exclude stk-benches --features stk/swift)

# Every build takes the versions of Cargo.lock.
cargo() { command cargo --locked "$@"; }

# setup_rust_target TARGET…: makes sure that `setup_cargo TARGET` works. Once there, it costs two file look-ups.
setup_rust_target() {
  local target
  for target in "$@"; do
    if [ -z "${STK_NO_RUSTUP_TARGET:-}" ]; then
      setup_has_std "$target" && continue
      if command -v rustup >/dev/null; then
        setup_say "rustup target add $target"
        timeout 300 rustup -q target add "$target" >&2 </dev/null && setup_has_std "$target" && continue
        setup_say "rustup cannot add $target: its std will be built from source"
      fi
    fi
    setup_rust_src || return 1
  done
}

# setup_cargo TARGET[,TARGET…] SUBCOMMAND [ARGUMENT…]: cargo for Windows targets, whichever way their std comes. All of which std is there
# are one call, so that no processor waits for the last crate of each.
setup_cargo() {
  local target subcommand=$2 ready=() status=0
  for target in ${1//,/ }; do
    if ! setup_builds_std "$target"; then
      ready+=(--target "$target")
      continue
    fi
    setup_i686_objects "$target" || return 1
    # A target folder of its own: build scripts that ask about RUSTC_BOOTSTRAP would otherwise rebuild the host's crates at each change.
    RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$STK_TARGET_DIR/build-std" \
      cargo "$subcommand" -Zbuild-std=std,panic_abort --target "$target" "${@:3}" || status=$?
  done
  [ ${#ready[@]} = 0 ] || cargo "$subcommand" "${ready[@]}" "${@:3}" || status=$?
  return $status
}

# setup_build_recorder [-q] TARGET…: agent.dll and inject.exe of each target, side by side; also named agent32.dll and inject32.exe for x86.
# One cargo call each: together, features of dependencies that inject alone needs would reach the agent, which must do without std and has a
# profile of its own.
setup_build_recorder() {
  (
    quiet=()
    [ "$1" != -q ] || { quiet=(-q) && shift; }
    targets=$(printf '%s,' "$@")
    cd "$STK_ROOT" || exit 1
    case $targets in *"$STK_ARM64_TARGET,"*) setup_arm64_tools || exit 1 ;; esac
    setup_cargo "$targets" build --profile agent "${quiet[@]}" -p stk-agent &&
      setup_cargo "$targets" build --release "${quiet[@]}" -p stk-inject || exit 1
    for target in "$@"; do
      bin=$(setup_windows_bin "$target")
      cp --remove-destination "$(setup_windows_bin "$target" agent)/agent.dll" "$bin/" || exit 1
      [ "$target" != "$STK_WINDOWS32_TARGET" ] ||
        { cp --remove-destination "$bin/agent.dll" "$bin/agent32.dll" && cp --remove-destination "$bin/inject.exe" "$bin/inject32.exe"; } || exit 1
    done
  )
}

# setup_i686_objects TARGET: std for i686-pc-windows-gnu, built from source, wants two objects that rustup would have brought.
setup_i686_objects() {
  local home=$STK_TARGET_DIR/build-std/rtstartup object source
  [ "$1" = i686-pc-windows-gnu ] || return 0
  source=$(setup_sysroot)/lib/rustlib/src/rust/library/rtstartup
  mkdir -p "$home"
  for object in rsbegin rsend; do
    [ -e "$home/$object.o" ] || RUSTC_BOOTSTRAP=1 rustc --target "$1" --emit=obj -C panic=abort -o "$home/$object.o" "$source/$object.rs" || return 1
  done
  export CARGO_TARGET_I686_PC_WINDOWS_GNU_RUSTFLAGS="-L native=$home"
}

# setup_windows_bin TARGET [PROFILE]: the folder where setup_cargo leaves its programs.
setup_windows_bin() {
  if setup_builds_std "$1"; then
    printf '%s/build-std/%s/%s\n' "$STK_TARGET_DIR" "$1" "${2:-release}"
  else
    printf '%s/%s/%s\n' "$STK_TARGET_DIR" "$1" "${2:-release}"
  fi
}

setup_sysroot() {
  [ -n "${setup_sysroot_seen:-}" ] || setup_sysroot_seen=$(cd "$STK_ROOT" && rustc --print sysroot)
  printf '%s\n' "$setup_sysroot_seen"
}

setup_has_std() { compgen -G "$(setup_sysroot)/lib/rustlib/$1/lib/libstd-*.rlib" >/dev/null; }

setup_builds_std() { [ -n "${STK_NO_RUSTUP_TARGET:-}" ] || ! setup_has_std "$1"; }

# The source of std, in the place where cargo looks for it.
setup_rust_src() {
  local place version
  place=$(setup_sysroot)/lib/rustlib/src/rust/library
  [ -e "$place/std/Cargo.toml" ] && return 0
  if command -v rustup >/dev/null && [ -z "${STK_NO_RUSTUP_TARGET:-}" ]; then
    setup_say "rustup component add rust-src"
    timeout 300 rustup -q component add rust-src >&2 </dev/null && [ -e "$place/std/Cargo.toml" ] && return 0
  fi
  version=$(rustc -vV | sed -n 's/^release: //p')
  setup_say "taking rust-src $version from Debian's trixie-backports"
  setup_debian_rust_src "$version" "$place" || setup_fail "no Windows std: neither rustup nor Debian has one for Rust $version"
}

# setup_debian_rust_src VERSION PLACE: Debian's rust-src package, unpacked, not installed.
setup_debian_rust_src() {
  local version=$1 place=$2 work full
  work=$(mktemp -d)
  if ! setup_debian_listed "$work" amd64 trixie-backports "rust-src_$version%2b" >"$work/log" 2>&1; then
    # Debian appends its own revision: 1.95.0+dfsg1-1~bpo13+1.
    full=$(setup_debian_versions "$work/apt" amd64 trixie-backports rust-src |
      awk -v v="$version" '{ split($1, part, /[+~-]/); if (part[1] == v) { print; exit } }')
    [ -z "$full" ] || setup_debian_download "$work" amd64 trixie-backports "rust-src=$full"
  fi
  if ! dpkg -x "$work"/rust-src_*.deb "$work/root"; then
    rm -rf "$work"
    return 1
  fi
  local source="$work/root/usr/src/rustc-$version/library" copy=()
  # A toolchain of the system belongs to root.
  mkdir -p "$(dirname "$place")" 2>/dev/null && [ -w "$(dirname "$place")" ] || copy=(setup_as_root)
  "${copy[@]}" mkdir -p "$(dirname "$place")" && "${copy[@]}" cp -r "$source" "$place"
  rm -rf "$work"
  [ -e "$place/std/Cargo.toml" ]
}
