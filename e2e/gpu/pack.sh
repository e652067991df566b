#!/bin/bash
# pack.sh FOLDER VERSION [VERSION]: the archives that unpack.sh takes on a GPU host without a network, in FOLDER.
#
# common.tar.xz has what vLLM, the connector, the operator and the router need beyond what the host's Python has
# (host-has.txt), vllm-VERSION.tar.xz vLLM itself; of a second version only what differs from the first. Of CUDA code
# only that for GPU (default 90, an H100 or H200) is kept. With KVCACHED_PYTHON, an interpreter that has torch and
# setuptools, kvcached's source archive is added. The first version decides what the packages in common are. Wants uv,
# xz, a network and 4 GiB; run it in the checkout.
set -euo pipefail
usage='pack.sh FOLDER VERSION [VERSION], such as pack.sh parts 0.33.0'
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "pack.sh: takes a folder and one or two versions of vLLM: $usage" >&2
    exit 2
fi
folder=$1 first=$2 second=${3:-}
for tool in uv xz python3; do
    if ! command -v "$tool" > /dev/null; then
        echo "pack.sh: no program $tool on PATH: install it; .venv/bin has uv after make install" >&2
        exit 2
    fi
done
if [ -n "${KVCACHED:-}" ]; then
    echo "pack.sh: KVCACHED is for unpack.sh: name an interpreter that has torch and setuptools as KVCACHED_PYTHON" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
get() {
    uv pip install --quiet --python-version "${PYTHON_VERSION:-3.12}" --python-platform x86_64-manylinux_2_31 \
        --only-binary :all: --target "$@"
}
needed() {
    python3 - "$here/operator/pyproject.toml" <<'PY'
import sys, tomllib
print("\n".join(tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"]))
PY
}
pack() { tar -C "$1" -cf - . | xz -T0 -6 > "$folder/$2"; }

needed > "$work/requirements.txt"
get "$work/common" "vllm==$first" nixl-cu13==1.5.1 nixl==1.5.1 wrapt posix_ipc smg==1.13.0 \
    -r "$work/requirements.txt" --override "$here/e2e/gpu/host-has.txt"
# NIXL's hidden folder has its libraries. The rest is for other machines, or for what the lane does not start.
(cd "$work/common" && rm -rf vllm vllm-*.dist-info .nixl_cu12* nixl_cu12* nixl_ep* nccl/m2n nccl/ep nccl/_extensions \
    include uvloop pycountry/locales flashinfer/data kubernetes/aio)
for version in "$first" $second; do
    get "$work/$version" "vllm==$version" --no-deps
    (cd "$work/$version/vllm" && rm -rf vllm-rs vllm_flash_attn/_vllm_fa2_C* third_party/fmha_sm100 \
        third_party/deep_gemm)
    find "$work/$version" -name '*.so' -exec python3 "$here/e2e/gpu/one_gpu.py" "${GPU:-90}" {} +
done
find "$work" -name __pycache__ -prune -exec rm -rf {} +
if [ -n "$second" ]; then
    (cd "$work/$second" && find . -type f -printf '%P\n' | while IFS= read -r file; do
        if cmp -s "$file" "../$first/$file"; then echo "$file"; rm "$file"; fi
    done > "$work/same" && mv "$work/same" .same)
fi
pack "$work/common" common.tar.xz
for version in "$first" $second; do pack "$work/$version" "vllm-$version.tar.xz"; done
python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$folder" setuptools
if [ -n "${KVCACHED_PYTHON:-}" ]; then
    # pip asks the sources for their metadata, which wants torch and a folder for CUDA, and compiles nothing.
    CUDA_HOME=$work python3 -m pip --python "$KVCACHED_PYTHON" download --quiet --no-deps --no-build-isolation \
        --no-binary :all: --require-hashes -r "$here/requirements/kvcached.txt" --dest "$folder"
fi
(cd "$folder" && sha256sum -- *.tar.xz > SHA256SUMS)
ls -l "$folder"
