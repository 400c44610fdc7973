# Debian packages of a newer release, unpacked into folders of our own. Sourced by tests/setup/setup.sh.
#
# Nothing is installed and no maintainer script runs. Packages come by exact version and hash, as tests/setup/debian-packages.txt lists them; what
# the archive no longer has is taken through its signed index, with a private configuration of apt (its own lists, cache and architecture). The
# archive is that of this machine's own sources.

STK_DEBIAN_PACKAGES=$STK_ROOT/tests/setup/debian-packages.txt

# setup_debian_download FOLDER ARCHITECTURE SUITE PACKAGE…: leaves the packages' .deb files in FOLDER. A PACKAGE is NAME, or NAME=VERSION to
# take that version from the index.
setup_debian_download() {
  local folder=$1 architecture=$2 suite=$3 apt=$1/apt log=$1/apt.log package others=()
  shift 3
  : >"$log"
  for package in "$@"; do
    setup_debian_listed "$folder" "$architecture" "$suite" "${package}_" >>"$log" 2>&1 || others+=("$package")
  done
  [ ${#others[@]} -gt 0 ] || return 0
  setup_say "not as listed, so from the index of Debian's $suite ($architecture): ${others[*]}"
  setup_debian_apt "$apt" "$architecture" "$suite" || return 1
  if ! {
    APT_CONFIG="$apt/apt.conf" apt-get -q update &&
      (cd "$folder" && APT_CONFIG="$apt/apt.conf" apt-get -q download "${others[@]}")
  } >>"$log" 2>&1; then
    tail -n 8 "$log" >&2
    setup_fail "these packages of Debian's $suite ($architecture) could not be downloaded: ${others[*]}"
    return 1
  fi
  rm -rf "$apt"
}

# setup_debian_listed FOLDER ARCHITECTURE SUITE START: the listed package whose file name starts with START, NAME_ and as much of the version as
# matters. Fails if none is listed, or if the archive does not have it with that hash.
setup_debian_listed() {
  local path hash mirror file
  read -r path hash < <(awk -v suite="$3" -v architecture="$2" -v start="/$4" \
    '$1 == suite && $2 == architecture && index($3, start) { print $3, $4 }' "$STK_DEBIAN_PACKAGES") || return 1
  mirror=$(setup_debian_mirror) || return 1
  file=$1/$(basename "$path")
  # apt-helper has apt's proxies and checks the hash.
  /usr/lib/apt/apt-helper -q -o APT::Sandbox::User=root -o Acquire::Retries=3 \
    download-file "${mirror%/}/$path" "$file" "SHA256:$hash" </dev/null && return 0
  rm -f "$file"
  return 1
}

# setup_debian_versions FOLDER ARCHITECTURE SUITE PACKAGE: the package's versions there, one a line. FOLDER is for apt's lists.
setup_debian_versions() {
  setup_debian_apt "$1" "$2" "$3" && APT_CONFIG="$1/apt.conf" apt-get -q update >"$1/log" 2>&1 &&
    APT_CONFIG="$1/apt.conf" apt-cache madison "$4" | awk '{ print $3 }'
}

# setup_debian_apt FOLDER ARCHITECTURE SUITE: writes FOLDER/apt.conf and what it names.
setup_debian_apt() {
  local folder=$1 architecture=$2 suite=$3 mirror
  mirror=$(setup_debian_mirror) || return 1
  rm -rf "$folder"
  mkdir -p "$folder/state/lists/partial" "$folder/cache/archives/partial" "$folder/parts"
  : >"$folder/status"
  printf 'deb [signed-by=%s] %s %s main\n' /usr/share/keyrings/debian-archive-keyring.gpg "$mirror" "$suite" >"$folder/sources.list"
  cat >"$folder/apt.conf" <<CONFIGURATION
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "$folder/parts";
Dir::State "$folder/state";
Dir::State::Status "$folder/status";
Dir::Cache "$folder/cache";
CONFIGURATION
}

# The Debian archive of this machine's sources, in either of apt's two formats.
setup_debian_mirror() {
  local mirror
  mirror=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '$1 == "URIs:" && $2 ~ /\/debian\/?$/ { print $2; exit }')
  [ -n "$mirror" ] || mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /:\/\/.*\/debian\/?$/) { print $i; exit } }')
  [ -n "$mirror" ] && printf '%s\n' "$mirror" || setup_fail "no Debian archive among this machine's apt sources"
}
