#!/bin/sh
# Trains with the original Megatron-LM and TorchTitan on this machine's GPUs, started by `primus train`, and with the native
# engine on the same GPUs with the same experiments, data and initial weights. In 20 steps each, the losses must agree within
# 1e-3 in fp32 and 1e-2 in bf16 (scripts/check-megatron-run.py and check-torchtitan-run.py, with --device cuda).
#
#   scripts/gpu_frameworks.sh FOLDER [PRIMUS]     the program (build/bin/primus by default), with the plug-in next to it
#
# FOLDER contains the checkouts Megatron-LM/ and torchtitan/ at the commits of presets/backends/pins.yaml, and optionally
# wheels/ with packages that the machine's Python lacks. No network is needed. PYTHON selects a Python with PyTorch (python3
# by default). DEVICE=cpu runs everything without a GPU. Exits 1 if a check fails.
set -eu
if [ ! -d "${1:-}" ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}
device=${DEVICE:-cuda}
python=$(${PYTHON:-python3} -c 'import sys; print(sys.executable)')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Makes a virtual environment with the packages of wheels/. `primus train` puts its folder first on PATH. Megatron-LM's
# Makefile gets the file suffix of its helpers from python3-config, which virtual environments lack.
environment=$scratch/python
mkdir -p "$environment/bin"
: >"$environment/pyvenv.cfg"
for wheel in "$folder"/wheels/*.whl; do
  [ ! -e "$wheel" ] || "$python" -m zipfile -e "$wheel" "$environment/packages"
done
cat >"$environment/bin/python3" <<PYTHON3
#!/bin/sh
PYTHONPATH="$environment/packages\${PYTHONPATH:+:\$PYTHONPATH}" exec "$python" "\$@"
PYTHON3
cat >"$environment/bin/python3-config" <<CONFIG
#!/bin/sh
exec "$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))'
CONFIG
chmod +x "$environment/bin/python3" "$environment/bin/python3-config"

# Megatron-LM calls nvcc to determine its version.
PATH=$PATH:/usr/local/cuda/bin
# Compilation takes longer than twenty steps, and changes results only by rounding.
export PATH TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
failed=0
"$primus" device list
"$environment/bin/python3" -c 'import platform, torch
print("Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)'
for framework in Megatron-LM torchtitan; do
  option=$(echo "${framework%-LM}" | tr '[:upper:]' '[:lower:]')
  echo "== $framework"
  if python3 "scripts/check-$option-run.py" "--$option" "$folder/$framework" --python "$environment/bin/python3" \
    --primus "$primus" --device "$device"; then
    echo "ok      $framework and the native engine on $device have the same losses"
  else
    failed=1
    echo "FAILED  $framework on $device"
  fi
done
exit $failed
