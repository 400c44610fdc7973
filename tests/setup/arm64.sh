# Windows on arm64: a Wine 10 for it, run by qemu's user emulation, and what links programs for it. Sourced by tests/setup/setup.sh.

STK_ARM64_TARGET=aarch64-pc-windows-gnullvm
# A CPU without branch target identification: Debian's ntdll.so is marked for it, but Wine's own dispatcher begins with no landing pad.
STK_ARM64_CPU=neoverse-n1

# setup_wine_arm64: makes the folder and the prefix if they are not there, and exports STK_WINE_ARM64, a command that runs an arm64 Windows
# program. Several scripts may call it at once. The kernel must allow user namespaces and know binfmt_misc in them (Linux 6.7 or later).
setup_wine_arm64() {
  local home=${STK_WINE_ARM64_DIR:-$STK_TARGET_DIR/wine-arm64}
  export STK_WINE_ARM64_DIR=$home STK_WINE_ARM64=$home/wine
  setup_emulation_allowed && setup_wine10_once "$home" setup_wine_arm64_root
}

# Says why emulated programs cannot be run here, if so.
setup_emulation_allowed() {
  local why
  if ! why=$(unshare -U --map-root-user -m true 2>&1); then
    setup_fail "arm64 programs cannot be run here: the kernel allows no user namespace ($why)"
  elif ! why=$(unshare -U --map-root-user -m mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>&1); then
    setup_fail "arm64 programs cannot be run here: the kernel ($(uname -r)) has no binfmt_misc for a user namespace, as Linux 6.7 and later have ($why)"
  fi
}

setup_wine_arm64_root() {
  local home=$1
  setup_say "unpacking Wine 10 for arm64, and qemu, into $home"
  setup_wine10_unpack "$home" arm64 || return 1
  mkdir -p "$home/debs" "$home/qemu"
  setup_debian_download "$home/debs" amd64 trixie-backports qemu-user && dpkg -x "$home"/debs/qemu-user_*.deb "$home/debs/unpacked" &&
    cp "$home/debs/unpacked/usr/bin/qemu-aarch64" "$home/qemu/" || return 1
  rm -rf "$home/debs"
  setup_zig && "$STK_ZIG" cc -target aarch64-linux-gnu -O1 -shared -fPIC -o "$home/root/usr/lib/ptrace.so" "$STK_ROOT/tests/setup/ptrace.c" || return 1
  # In place of Debian's script of the same name and purpose.
  printf '#!/bin/sh\nLD_PRELOAD=/usr/lib/ptrace.so exec /usr/lib/wine/wineserver64 -p0 "$@"\n' >"$home/root/usr/lib/wine/wineserver"
  # ELF, 64-bit, little-endian, executable or shared, EM_AARCH64. F: qemu is opened now, from outside of the root.
  local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  setup_wine10_commands "$home" "-U --map-root-user -m" \
    "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf '%s' ':aarch64:M::$magic:$mask:$home/qemu/qemu-aarch64:F' >/proc/sys/fs/binfmt_misc/register" "QEMU_CPU=$STK_ARM64_CPU"
}

# setup_zig: exports STK_ZIG, the compiler and linker whose libraries include Windows on arm64, pinned by tests/fetch.sh.
setup_zig() {
  local folder
  folder=$("$STK_ROOT/tests/fetch.sh" ziglang) || return 1
  export STK_ZIG=$folder/ziglang/zig ZIG_GLOBAL_CACHE_DIR=$STK_TARGET_DIR/zig ZIG_LOCAL_CACHE_DIR=$STK_TARGET_DIR/zig
  # Python's unpacking keeps no permissions.
  [ -x "$STK_ZIG" ] || chmod +x "$STK_ZIG"
}

# setup_arm64_tools: exports what setup_cargo needs to compile and link for arm64.
setup_arm64_tools() {
  setup_zig || return 1
  export CARGO_TARGET_AARCH64_PC_WINDOWS_GNULLVM_LINKER=$STK_ROOT/tests/setup/zig-cc.sh
  export CC_aarch64_pc_windows_gnullvm=$STK_ROOT/tests/setup/zig-cc.sh AR_aarch64_pc_windows_gnullvm=$STK_ROOT/tests/setup/zig-ar.sh
}
