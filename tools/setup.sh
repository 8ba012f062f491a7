#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build, the tests and the main job need: Debian packages by name, and libtorch with the Python test oracles in .venv.
# Idempotent: what is there is left alone. Usage: tools/setup.sh [--torch SPEC] [--no-apt]
#   --torch SPEC   another libtorch wheel, as pip takes it: torch==2.13.0+cu126, a path, a URL
#   --no-apt       never call apt-get; name missing packages and stop
set -euo pipefail
cd "$(dirname "$0")/.."

torch_spec=""
use_apt=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --torch) [ $# -ge 2 ] || { echo "setup: --torch needs a value, such as torch==2.13.0" >&2; exit 2; }; torch_spec="$2"; shift 2 ;;
    --no-apt) use_apt=no; shift ;;
    -h|--help) sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup: unknown option $1 (allowed: --torch SPEC, --no-apt)" >&2; exit 2 ;;
  esac
done
: "${torch_spec:=$(cat .venv/.hyper_parallel_torch 2>/dev/null || echo torch==2.13.0)}"  # what an earlier --torch asked for stays
say() { echo "setup: $*"; }

packages=(g++ clang-19 libclang-rt-19-dev clang-tidy-19 make cmake ninja-build ccache mold git python3 python3-venv clang-format-14
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libgtest-dev libgmock-dev libxxhash-dev zlib1g-dev
  libgloo-dev openmpi-bin dict-gcide)
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  say "Debian packages: all ${#packages[@]} are installed"
else
  sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  command="apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$use_apt" = no ] || { [ -n "$sudo" ] && ! command -v sudo >/dev/null; }; then
    echo "setup: missing Debian packages; as root run: $command" >&2
    exit 1
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive $command -qq >/dev/null
fi

if [ ! -x .venv/bin/pip ]; then
  say "creating .venv"
  /usr/bin/python3 -m venv --clear .venv
fi
oracles=(numpy==2.4.6 transformers==5.24.0 safetensors==0.8.0 pyyaml==6.0.4 psutil==7.2.2 expecttest==0.3.0)
want="$torch_spec ${oracles[*]}"
if [ "$(cat .venv/.hyper_parallel_packages 2>/dev/null || true)" = "$want" ]; then
  say "Python packages: up to date ($torch_spec and ${#oracles[@]} test oracles)"
else
  say "installing $torch_spec and ${oracles[*]} in .venv (a minute or two)"
  .venv/bin/pip install -q --disable-pip-version-check "$torch_spec" "${oracles[@]}" 2> >(grep -v '^WARNING: Location' >&2)
  echo "$torch_spec" > .venv/.hyper_parallel_torch
  echo "$want" > .venv/.hyper_parallel_packages
fi
say "done"
