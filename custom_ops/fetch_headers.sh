#!/bin/sh
# fetch_headers.sh DEST: unpacks the C++ headers that the library is built with into DEST/include.
#
# They are ONNX Runtime's C API (1.21 or later), nlohmann-json and xsimd 13, from the Debian or Ubuntu packages that carry
# them, downloaded with apt from the mirror that this machine is set up for. Needs no root, installs nothing, and leaves
# apt's own state alone. Does nothing if DEST/include is complete. Files appear in DEST/include all at once.
set -eu

packages="libonnxruntime-dev nlohmann-json3-dev libxsimd-dev"
wanted="onnxruntime/onnxruntime_c_api.h nlohmann/json.hpp xsimd/xsimd.hpp"
oldest_api=21

fail() {
  echo "fetch_headers.sh: $1" >&2
  echo "Set ONNXOPT_INCLUDE_DIR to a folder with onnxruntime/ (ONNX Runtime's C headers, 1.21 or later)," >&2
  echo "nlohmann/ (nlohmann-json 3.11) and xsimd/ (xsimd 13) to build without apt." >&2
  exit 1
}

# Whether the folder $1 has every header, ONNX Runtime's recent enough.
complete() {
  for header in $wanted; do
    [ -f "$1/$header" ] || return 1
  done
  api=$(sed -n 's/^#define ORT_API_VERSION \([0-9]*\).*/\1/p' "$1/onnxruntime/onnxruntime_c_api.h")
  [ "${api:-0}" -ge "$oldest_api" ]
}

# Prints "URI keyring" of this machine's first binary source for its own release, from either file format.
own_source() {
  for file in /etc/apt/sources.list.d/*.sources; do
    [ -f "$file" ] || continue
    awk -v suite="$VERSION_CODENAME" '
      function flush() { if (types ~ /(^| )deb( |$)/ && (" " suites " ") ~ (" " suite " ")) { print uri, key; exit }
                         types = uri = suites = key = "" }
      /^[ \t]*$/ { flush(); next }
      /^#/ { next }
      /^Types:/ { sub(/^[^:]*:[ \t]*/, ""); types = $0 }
      /^URIs:/ { sub(/^[^:]*:[ \t]*/, ""); split($0, part, " "); uri = part[1] }
      /^Suites:/ { sub(/^[^:]*:[ \t]*/, ""); suites = $0 }
      /^Signed-By:/ { sub(/^[^:]*:[ \t]*/, ""); key = $0 }
      END { flush() }' "$file"
  done | head -n 1 | grep . && return
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | awk -v suite="$VERSION_CODENAME" '
    $1 == "deb" {
      key = ""
      at = 2
      if ($2 ~ /^\[/) {
        for (; at <= NF; at++) {
          if ($at ~ /signed-by=/) { key = $at; sub(/.*signed-by=/, "", key); sub(/\].*/, "", key) }
          if ($at ~ /\]$/) { at++; break }
        }
      }
      if ($(at + 1) == suite) { print $at, key; exit }
    }'
}

# Downloads and unpacks the packages of suite $1 into $work/$1. The rest of the machine's apt settings (proxies,
# certificates) hold.
fetch_from() {
  folder="$work/$1"
  mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/parts" "$folder/packages" "$folder/root"
  signed=""
  [ -n "$keyring" ] && signed="Signed-By: $keyring"
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main universe\n%s\n' "$uri" "$1" "$signed" |
    { if [ "$ID" = ubuntu ]; then cat; else sed 's/ universe$//'; fi; } | sed '/^$/d' >"$folder/apt.sources"
  apt() {
    command=$1
    shift
    "$command" -qq -o Dir::Etc::sourcelist="$folder/apt.sources" -o Dir::Etc::sourceparts="$folder/parts" \
      -o Dir::State="$folder" -o Dir::State::lists="$folder/lists" -o Dir::State::status=/dev/null \
      -o Dir::Cache="$folder/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" \
      -o APT::Get::List-Cleanup=0 -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
  }
  apt apt-get update >"$folder/log" 2>&1 || return 1
  # shellcheck disable=SC2086  # a list of names
  (cd "$folder/packages" && apt apt-get download $packages >>"$folder/log" 2>&1) || return 1
  for package in "$folder"/packages/*.deb; do
    dpkg -x "$package" "$folder/root" >>"$folder/log" 2>&1 || return 1
  done
  complete "$folder/root/usr/include" || { echo "its ONNX Runtime is older than 1.$oldest_api" >>"$folder/log"; return 1; }
}

[ $# -eq 1 ] || fail "usage: fetch_headers.sh DEST"
destination=$1
if complete "$destination/include"; then exit 0; fi
for tool in apt-get dpkg awk sed; do
  command -v "$tool" >/dev/null || fail "this machine has no $tool, so the headers cannot be fetched."
done
[ -r /etc/os-release ] || fail "this machine does not say what system it is (/etc/os-release)."
. /etc/os-release
VERSION_CODENAME=${VERSION_CODENAME:-}
case "$ID" in
  debian) suites="trixie" ;;
  ubuntu) suites="$VERSION_CODENAME plucky questing" ;;
  *) fail "the headers are fetched on Debian and Ubuntu only, this is $ID." ;;
esac

source=$(own_source) || source=""
[ -n "$source" ] || fail "apt has no source for $ID $VERSION_CODENAME to take the mirror from."
uri=${source%% *}
keyring=${source#* }
mkdir -p "$destination"
work=$(mktemp -d "$destination/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

for suite in $suites; do
  if fetch_from "$suite"; then
    # Other builds may do the same at the same time: whoever comes first wins, and what they wrote is the same.
    mkdir "$work/include"
    for name in onnxruntime nlohmann xsimd; do
      mv "$work/$suite/root/usr/include/$name" "$work/include/$name"
    done
    rm -rf "$work/old"
    if [ -e "$destination/include" ]; then mv "$destination/include" "$work/old"; fi
    mv -T "$work/include" "$destination/include" 2>/dev/null || complete "$destination/include" ||
      fail "cannot write $destination/include."
    exit 0
  fi
  echo "fetch_headers.sh: $suite: $(grep -v '^$' "$work/$suite/log" 2>/dev/null | tail -n 2 | tr '\n' ' ')" >&2
done
fail "no package suite ($suites) gave $packages."
