# Debian packages of a newer release, unpacked into folders of our own. Sourced by tests/setup/setup.sh.
#
# Nothing is installed and no maintainer script runs. apt works with a private configuration (its own lists, cache and architecture); its
# mirror is the one of this machine's own sources.

# setup_debian_download FOLDER ARCHITECTURE SUITE PACKAGE…: leaves the packages' .deb files in FOLDER.
setup_debian_download() {
  local folder=$1 architecture=$2 suite=$3 apt log=$1/apt.log
  shift 3
  apt=$folder/apt
  setup_debian_apt "$apt" "$architecture" "$suite" || return 1
  if ! {
    APT_CONFIG="$apt/apt.conf" apt-get -q update &&
      (cd "$folder" && APT_CONFIG="$apt/apt.conf" apt-get -q download "$@")
  } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    setup_fail "these packages of Debian's $suite ($architecture) could not be downloaded: $*"
    return 1
  fi
  rm -rf "$apt"
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
