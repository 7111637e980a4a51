#!/bin/sh
# CPU per relayed event, gateway beside vllm-router. Needs wrk, gcc and the project's .venv.
# vllm-router comes into a virtual environment of its own; ROUTER=PATH uses one that is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
for tool in wrk gcc; do
  command -v "$tool" >/dev/null || { echo "relay.sh needs $tool (Debian: apt-get install wrk gcc)" >&2; exit 2; }
done
if [ -z "${ROUTER:-}" ]; then
  ROUTER=$root/.cache/vllm-router/bin/vllm-router
  [ -x "$ROUTER" ] || {
    python3 -m venv "$root/.cache/vllm-router"
    "$root/.cache/vllm-router/bin/pip" install --quiet vllm-router==0.1.17
  }
fi
exec "$root/.venv/bin/python" "$here/relay.py" --router "$ROUTER" "$@"
