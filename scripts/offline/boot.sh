# On a CUDA machine without network: `source boot.sh` in the folder that holds site.tar.xz (and project.tar.xz, unless
# this is the repository). Unpacks once, and sets the environment of what runs there. BUNDLE names another folder of
# archives, PLACE another one to unpack into. The machine brings Python 3.12 and torch 2.11 (CUDA 13, Hopper).
BUNDLE=${BUNDLE:-.}
PLACE=${PLACE:-/tmp/assayline-offline}
unpack='import sys, tarfile; tarfile.open(sys.argv[1], "r:xz").extractall(sys.argv[2], filter="data")'
if [ ! -f "$PLACE/unpacked" ]; then
  mkdir -p "$PLACE" || return 1
  for archive in "$BUNDLE"/*.tar.xz; do python3 -c "$unpack" "$archive" "$PLACE" || return 1; done
  PYTHONPATH= python3 -m compileall -q -j 0 "$PLACE/site" >/dev/null 2>&1
  touch "$PLACE/unpacked"
fi
# FlashInfer is not in the bundle, and vLLM 0.26 imports it for sampling unless it is told not to.
export PYTHONPATH="$PLACE/site" PYTHONUNBUFFERED=1 VLLM_USE_FLASHINFER_SAMPLER=0 \
  VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PREFECT_SERVER_ANALYTICS_ENABLED=false \
  VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo VLLM_CACHE_ROOT="$PLACE/cache" \
  TORCHINDUCTOR_CACHE_DIR="$PLACE/inductor" TRITON_CACHE_DIR="$PLACE/triton"
if [ -d "$PLACE/project" ]; then cd "$PLACE/project" || return 1; fi
