#!/usr/bin/env bash
# Takes the place of the C compiler and the archiver of the MSVC targets, for which there is no SDK here: `cargo check` runs the build scripts (zstd-sys
# compiles C) but never links, so empty outputs serve. Understands cl, lib, cc and ar command lines as the `cc` crate writes them.
set -eu
previous=
for argument in "$@"; do
  if [ "$previous" = -o ]; then : >"$argument"; fi
  case $argument in
    -Fo* | /Fo*) : >"${argument:3}" ;;
    -out:* | /out:* | -OUT:* | /OUT:*) : >"${argument:5}" ;;
    *.a | *.lib) [ "$previous" = -o ] || : >"$argument" ;;
  esac
  previous=$argument
done
