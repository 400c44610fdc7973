# What release.sh needs beside a build: programs that two machines make alike, import libraries, signatures, sums. Sourced by tests/setup/setup.sh.

# setup_reproducible: exports what makes a build's bytes depend on the sources, Cargo.lock and the tools alone: no path of this machine (checkout,
# target folder, cargo's home, toolchain) goes into a program, and its time stamps are SOURCE_DATE_EPOCH, by default the commit's.
setup_reproducible() {
  local home=${CARGO_HOME:-$HOME/.cargo} place real target variable places maps=()
  [ -n "${SOURCE_DATE_EPOCH:-}" ] || SOURCE_DATE_EPOCH=$(git -C "$STK_ROOT" log -1 --format=%ct) ||
    { setup_fail "no git here: SOURCE_DATE_EPOCH must name the time of the sources"; return 1; }
  export SOURCE_DATE_EPOCH
  case $STK_ROOT$STK_TARGET_DIR$home in
    *[[:space:]]*) setup_fail "compilers take these paths between spaces: move the checkout, the target folder or CARGO_HOME"; return 1 ;;
  esac
  # The folders of the registry's sources are there only once they are unpacked.
  (cd "$STK_ROOT" && cargo fetch -q) || return 1
  # Of several that match the last counts, for rustc as for the C compilers. Each path as it is called and, where links lead there, as it is: rustc
  # asks for its folder, cargo hands on names.
  mkdir -p "$STK_TARGET_DIR"
  places=("$STK_ROOT=/stk" "$STK_TARGET_DIR=/target" "$home=/cargo")
  for place in "$home"/registry/src/*; do places+=("$place=/cargo/registry"); done
  places+=("$(setup_sysroot)/lib/rustlib/src/rust=/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')")
  for place in "${places[@]}"; do
    maps+=("$place")
    real=$(realpath -m "${place%=*}")
    [ "$real" = "${place%=*}" ] || maps+=("$real=${place##*=}")
  done
  # `-ffile-prefix-map` changes DWARF and __FILE__. The C code of a build script's own is mapped, too, which harms nothing.
  export CFLAGS="${maps[*]/#/-ffile-prefix-map=}" CXXFLAGS="${maps[*]/#/-ffile-prefix-map=}"
  for target in "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "$STK_ARM64_TARGET"; do
    variable=${target//-/_}
    export "CARGO_TARGET_${variable^^}_RUSTFLAGS=${maps[*]/#/--remap-path-prefix=}"
  done
}

# release_same_build_id FILE…: lld takes the number by which a program names its PDB from the names of all symbols, and rustc gives some a random folder's:
# the number is made of the program's bytes instead, which then have no such symbol any more.
release_same_build_id() {
  python3 - "$@" <<'PYTHON'
import hashlib, re, sys
from pathlib import Path
for path in map(Path, sys.argv[1:]):
    data = path.read_bytes()
    places = [found.start() + 4 for found in re.finditer(rb"RSDS.{8}LLD PDB\.", data, re.DOTALL)]
    for place in places:
        data = data[:place] + bytes(8) + data[place + 8 :]
    number = hashlib.sha256(data).digest()[:8]
    for place in places:
        data = data[:place] + number + data[place + 8 :]
    path.write_bytes(data)
PYTHON
}

# release_names_no_path FOLDER: fails where a file below FOLDER holds a path of this machine that setup_reproducible maps away.
release_names_no_path() {
  local place hex found places=("$STK_ROOT" "$STK_TARGET_DIR" "${CARGO_HOME:-$HOME/.cargo}" "${RUSTUP_HOME:-$HOME/.rustup}" "${STK_FETCH_DIR:-$STK_ROOT/tests/.cache}")
  for place in "${places[@]}"; do places+=("$(realpath -m "$place")"); done
  while read -r place; do
    # As bytes, and as the UTF-16 of Windows' texts.
    hex=$(printf '%s' "$place" | od -An -v -tx1 | tr -d '\n')
    found=$(LC_ALL=C grep -rlaP -e "$(sed 's/ \(..\)/\\x\1/g' <<<"$hex")|$(sed 's/ \(..\)/\\x\1\\x00/g' <<<"$hex")" "$1") || continue
    setup_fail "these files of the release hold the path $place of this machine: ${found//$'\n'/, }"
    return 1
  done < <(printf '%s\n' "${places[@]}" | sort -u)
}

# release_import_library DLL MACHINE CC LIBRARY: the import library of the functions that stk_agent.h declares, in the form that MSVC's link, lld and
# mingw's ld take. MACHINE is llvm-dlltool's (i386, i386:x86-64, arm64); CC compiles for it: on x86 names say how many bytes a function takes.
release_import_library() {
  local dll=$1 machine=$2 cc=$3 library=$4 work names exports
  work=$(mktemp -d)
  names=$(sed -n 's/^uint32_t STK_AGENT_CALL \(stk_[a-z_]*\)(.*/\1/p' "$STK_ROOT/agent/include/stk_agent.h" | LC_ALL=C sort)
  exports=$(llvm-readobj-19 --coff-exports "$dll" | sed -n 's/^ *Name: \(stk_[a-z_]*\)$/\1/p' | LC_ALL=C sort)
  if [ -z "$names" ] || [ -n "$(LC_ALL=C comm -23 <(printf '%s\n' "$names") <(printf '%s\n' "$exports"))" ]; then
    rm -rf "$work"
    setup_fail "$dll does not export what stk_agent.h declares: $names"
    return 1
  fi
  {
    printf '#include <stk_agent.h>\nvoid *const stk_all[] = {\n'
    printf '  (void *)%s,\n' $names
    printf '};\n'
  } >"$work/names.c"
  {
    printf 'LIBRARY "%s"\nEXPORTS\n' "$(basename "$dll")"
    $cc -I "$STK_ROOT/agent/include" -c -o "$work/names.o" "$work/names.c" &&
      llvm-nm-19 --undefined-only --just-symbol-name "$work/names.o" | if [ "$machine" = i386 ]; then sed 's/^_//'; else cat; fi | LC_ALL=C sort
  } >"$work/agent.def" &&
    [ "$(grep -c '^stk_' "$work/agent.def")" = "$(wc -l <<<"$names")" ] &&
    # -k: the DLL exports the bare names.
    llvm-dlltool-19 -k -m "$machine" -d "$work/agent.def" -l "$library" || { rm -rf "$work"; setup_fail "no import library of $dll"; return 1; }
  rm -rf "$work"
}

# release_sign FILE…: signs programs with the certificate that the environment names, and verifies the signature; prints whether it did.
#
#   STK_SIGN_PKCS12         a file with the certificate, its chain and its key; unset or empty: nothing is signed
#   STK_SIGN_PASSWORD_FILE  a file with the password of that file; unset: it has none
#   STK_SIGN_TIMESTAMP      URL of an RFC 3161 time stamp server; unset: the signature ends with the certificate
#   STK_SIGN_ROOTS          certificates (PEM) that the verification trusts; unset: those of this system
release_sign() {
  local file roots=${STK_SIGN_ROOTS:-/etc/ssl/certs/ca-certificates.crt} password=()
  if [ -z "${STK_SIGN_PKCS12:-}" ]; then
    printf 'not signed: STK_SIGN_PKCS12 names no certificate\n'
    return 0
  fi
  [ -z "${STK_SIGN_PASSWORD_FILE:-}" ] || password=(-readpass "$STK_SIGN_PASSWORD_FILE")
  for file in "$@"; do
    osslsigncode sign -pkcs12 "$STK_SIGN_PKCS12" "${password[@]}" -h sha256 -n stk ${STK_SIGN_TIMESTAMP:+-ts "$STK_SIGN_TIMESTAMP"} \
      -in "$file" -out "$file.signed" >"$file.log" 2>&1 &&
      osslsigncode verify -CAfile "$roots" ${STK_SIGN_TIMESTAMP:+-TSA-CAfile "$roots"} "$file.signed" >>"$file.log" 2>&1 || {
      cat "$file.log" >&2
      rm -f "$file.signed" "$file.log"
      setup_fail "$file could not be signed with $STK_SIGN_PKCS12"
      return 1
    }
    mv "$file.signed" "$file"
    rm -f "$file.log"
    printf 'signed: %s\n' "$(basename "$file")"
  done
}
