# agent.dll's MSVC flavour without Microsoft's toolchain: clang and lld-link. Sourced by tests/setup/setup.sh.
#
# The agent needs no library of Microsoft's: its imports are made by rustc (raw-dylib), and it has no C runtime. inject and stk, which use std, cannot be
# linked so. Not done by lld-link as by link.exe: CETCOMPAT, control flow guard, details of the PDB.

STK_MSVC_TARGETS=(x86_64-pc-windows-msvc i686-pc-windows-msvc aarch64-pc-windows-msvc)

# Exports what setup_cargo needs to compile and link the agent for MSVC targets. The headers are what zstd wants of a C library's.
setup_msvc_tools() {
  local target name
  for target in "${STK_MSVC_TARGETS[@]}"; do
    name=${target//-/_}
    export "CARGO_TARGET_${name^^}_LINKER=lld-link-19" "CC_$name=clang-19" "AR_$name=llvm-lib-19" "CFLAGS_$name=-isystem $STK_ROOT/tests/setup/msvc"
  done
}

# The agents of all MSVC targets, each in a folder beside the gnu flavour's inject, which must have been built: setup_msvc_bin.
setup_build_msvc_agents() { # [-q]
  (
    cd "$STK_ROOT" || exit 1
    setup_msvc_tools
    setup_cargo "$(printf '%s,' "${STK_MSVC_TARGETS[@]}")" build --profile agent "$@" -p stk-agent || exit 1
    setup_msvc_bin x86_64 "$STK_WINDOWS_TARGET" && setup_msvc_bin i686 "$STK_WINDOWS32_TARGET" && setup_msvc_bin aarch64 "$STK_ARM64_TARGET"
  )
}

# setup_msvc_bin ARCH INJECT'S TARGET: fills $STK_TARGET_DIR/msvc/ARCH, where inject was built.
setup_msvc_bin() {
  local to=$STK_TARGET_DIR/msvc/$1 inject suffix
  inject=$(setup_windows_bin "$2")/inject.exe
  mkdir -p "$to"
  for suffix in "" 32; do
    [ "$1" = i686 ] || [ -z "$suffix" ] || continue
    cp --remove-destination "$(setup_windows_bin "$1-pc-windows-msvc" agent)/agent.dll" "$to/agent$suffix.dll" || return 1
    [ ! -e "$inject" ] || cp --remove-destination "$inject" "$to/inject$suffix.exe" || return 1
  done
}
