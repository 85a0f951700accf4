# install.sh, on a lent machine, in a folder with all that bench.gpu.carry packed: TensorFlow's CUDA
# build, the wheels and stitchcore of the current folder into `python3`. CUDA 13's libraries do for
# those of 12 that TensorFlow asks for, all but the runtime, which came along.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
system=/usr/lib/x86_64-linux-gnu
found=$(find /usr/local/cuda*/ -name 'libcublas.so.13' 2> /dev/null | head -1)
if [ -z "$found" ]; then
    echo "install.sh: no libcublas.so.13 under /usr/local/cuda*: this needs CUDA 13's libraries" >&2
    exit 1
fi
cuda=$(dirname "$found")
cat "$here"/tensorflow.tar.xz.* | xz -dc -T0 | tar x -C "$site"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir "$here"/rest/*.whl
for pair in libcublas.so.12:libcublas.so.13 libcublasLt.so.12:libcublasLt.so.13 \
    libcufft.so.11:libcufft.so.12 libcusolver.so.11:libcusolver.so.12; do
    ln -sf "$cuda/${pair#*:}" "$system/${pair%:*}"
done
for same in libcusparse.so.12 libcurand.so.10; do ln -sf "$cuda/$same" "$system/$same"; done
cp "$site/nvidia/cuda_runtime/lib/libcudart.so.12" "$system/"
printf '%s\n' "$PWD" "$PWD/operator" "$PWD/worker" > "$site/stitchcore.pth"
mkdir -p stitchcore/inject/lib/x86_64
cp "$here"/rest/*.so stitchcore/inject/lib/x86_64/
touch stitchcore/inject/lib/x86_64/*
python3 -c 'import sys, tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
print(tf.__version__, gpus)
sys.exit(None if gpus else "install.sh: TensorFlow sees no GPU: its words are above")'
