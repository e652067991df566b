#!/bin/bash
# unpack.sh PARTS FOLDER VERSION: an environment of vLLM VERSION in FOLDER/env-VERSION, from the archives in PARTS.
#
# PARTS holds common.tar.xz and vllm-VERSION.tar.xz, whole or cut into .00, .01, ..., and SHA256SUMS of the whole ones.
# An archive that lists files in .same has these from the version that was unpacked before: name that one as BASE.
# The environment is one of python3 (PYTHON), whose packages it sees behind its own: torch is not in the archives. With
# a source archive of kvcached in PARTS, which pack.sh adds with KVCACHED_PYTHON, and KVCACHED=1, that is built into it.
# Wants xz. Run it in the checkout.
set -euo pipefail
failed() { echo "unpack.sh: $1" >&2; exit 2; }
[ $# -eq 3 ] || failed 'takes two folders and a version: PARTS FOLDER VERSION, such as unpack.sh parts engines 0.33.0'
parts=$1 folder=$2 version=$3
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/../.." && pwd)
for tool in xz "$python"; do
    command -v "$tool" > /dev/null || failed "no program $tool on PATH: install it"
done
[ -d "$parts" ] || failed "no folder $parts: it is the one that pack.sh has made"
made="pack.sh FOLDER $version makes it"
for name in common.tar.xz "vllm-$version.tar.xz"; do
    # Whole, or cut into pieces; what was unpacked before is not needed again.
    unpacked=$folder/${name%.tar.xz}/.complete
    [ -e "$unpacked" ] || [ -e "$parts/$name" ] || [ -e "$parts/$name.00" ] || failed "no $name in $parts: $made"
    [ -e "$unpacked" ] || grep -qsE "  $name\$" "$parts/SHA256SUMS" \
        || failed "no line for $name in $parts/SHA256SUMS: $made beside the archives"
done
case ${KVCACHED:-0} in
    0) ;;
    1) compgen -G "$parts/kvcached-*.tar.gz" > /dev/null \
        || failed "KVCACHED=1: no kvcached-*.tar.gz in $parts: pack.sh adds it with KVCACHED_PYTHON"
       compgen -G "$parts/setuptools-*.whl" > /dev/null || failed "KVCACHED=1: no setuptools-*.whl in $parts: $made" ;;
    *) failed "KVCACHED=$KVCACHED: takes 0 or 1; the interpreter of the sources is KVCACHED_PYTHON, of pack.sh" ;;
esac
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

unpack() {
    local name=$1 target=$2
    [ -e "$target/.complete" ] && return
    cd "$parts"
    # Joined under another name until it is known to be whole: a piece that was damaged can come again.
    local found=$name
    if [ ! -e "$name" ]; then found=$name.joined && cat "$name".[0-9][0-9] > "$found"; fi
    grep -E "  $name\$" SHA256SUMS | sed "s/  .*/  $found/" | sha256sum --quiet --check
    [ "$found" = "$name" ] || mv "$found" "$name"
    cd - > /dev/null
    rm -rf "$target"
    mkdir -p "$target"
    tar -xJf "$parts/$name" -C "$target"
    if [ -e "$target/.same" ]; then
        local base=${BASE:?"$name has files from another version: name it by BASE"}
        while IFS= read -r file; do
            [ -n "$file" ] || continue
            mkdir -p "$target/$(dirname "$file")"
            ln -f "$folder/vllm-$base/$file" "$target/$file"
        done < "$target/.same"
    fi
    # Files for other Pythons do not compile.
    "$python" -m compileall -q -j 0 "$target" > "$target/.compiled" 2>&1 || true
    touch "$target/.complete"
}

parts=$(cd "$parts" && pwd)
unpack common.tar.xz "$folder/common" &
first=$!
unpack "vllm-$version.tar.xz" "$folder/vllm-$version"
wait "$first"

env=$folder/env-$version
"$python" -m venv --without-pip --clear "$env"
site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
behind=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Read in this order, so that what was unpacked comes before what the machine has, and before kvcached's own file.
cat > "$site/00-lane.pth" <<PTH
$folder/vllm-$version
$folder/common
import site; site.addsitedir("$behind")
PTH
# What an installed connector says of itself, so that vLLM finds its plugin; the package comes from the checkout.
"$python" - "$here/connector/pyproject.toml" "$site" <<'PY'
import pathlib, re, sys, tomllib
file = pathlib.Path(sys.argv[1])
project = tomllib.loads(file.read_text())["project"]
package = file.parent / "src" / project["name"].replace("-", "_")
version = re.search(r'^__version__ = "(.+)"$', (package / "__init__.py").read_text(), re.MULTILINE)[1]
about = pathlib.Path(sys.argv[2]) / f"{package.name}-{version}.dist-info"
about.mkdir(exist_ok=True)
(about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
lines = []
for group, entries in project["entry-points"].items():
    lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
(about / "entry_points.txt").write_text("\n".join(lines) + "\n")
PY
if [ "${KVCACHED:-0}" = 1 ]; then
    "$python" -m pip install --quiet --no-index --no-build-isolation --no-deps --upgrade --target "$folder/build" \
        "$parts"/setuptools-*.whl
    PYTHONPATH=$folder/build "$python" -m pip install --quiet --no-index --no-build-isolation --no-deps \
        --target "$site" "$parts"/kvcached-*.tar.gz
fi
"$env/bin/python" - <<'PY'
import importlib.metadata as m, importlib.util as u, pydantic
for module in ("vllm", "nixl", "smg", "aiohttp", "yaml", "click", "prometheus_client"):
    assert u.find_spec(module), f"no module {module}"
torch = m.version("torch") if u.find_spec("torch") else "missing"
print("vllm", m.version("vllm"), "torch", torch, "pydantic", pydantic.VERSION, "smg", m.version("smg"))
PY
echo "$env/bin/python"
