#!/usr/bin/env bash
# Builds the GPU tests and benches into one folder, which runs beside the repository's tree on a
# machine that has only an NVIDIA driver, bash and Python.
#
#   tests/gpu/build.sh [FOLDER]      default build/gpu-run; with the folders of the tree that run.sh
#                                    reads under 64 MiB
#
# GPU_ARCHITECTURES (90): target architectures in CMake's notation.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-build/gpu-run}
# All that is in the folder is deleted.
if [ -n "$(ls -A "$folder" 2>/dev/null)" ] && [ ! -f "$folder/contents.tar.xz" ]; then
  echo "build.sh: FOLDER $folder has other files; it must be new, empty or of an earlier build" >&2
  exit 2
fi
build=${LSSAR_GPU_BUILD:-build/gpu}
max_kib=$((64 * 1024))  # of the folder and of what run.sh reads, together
read_by_run=(tests/golden tests/gpu models/zoo/lssar-6m models/training)
programs=(gpu_tests golden_check gpu_bench gpu_model_tests gpu_model_bench)

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLSSAR_WITH_CUDA=ON \
  -DLSSAR_CUDA_ARCHITECTURES="${GPU_ARCHITECTURES:-90}"
cmake --build "$build" --target "${programs[@]}" -- -j "${JOBS:-$(nproc)}"

contents=$(mktemp -d)
trap 'rm -rf "$contents"' EXIT
mkdir -p "$contents/bin" "$contents/lib"
for program in "${programs[@]}"; do
  strip -o "$contents/bin/$program" "$build/bin/$program"
done
# Packs the shared libraries of this machine, but not those of the C library.
ldd "$contents"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' |
  while read -r library; do cp -L "$library" "$contents/lib/"; done

rm -rf "$folder"
mkdir -p "$folder"
tar -C "$contents" -c . | xz -T0 -6 >"$folder/contents.tar.xz"
cp tests/gpu/run.sh "$folder/"

tree_kib=$(git ls-files -z "${read_by_run[@]}" | xargs -0 du -cbl |
  awk '/\ttotal$/ { bytes += $1 } END { print int(bytes / 1024) }')
size_kib=$(du -sk "$folder" | cut -f1)
echo "$folder: $((size_kib / 1024)) MiB, ${read_by_run[*]}: $((tree_kib / 1024)) MiB"
if [ $((size_kib + tree_kib)) -gt "$max_kib" ]; then
  echo "build.sh: together they are larger than $((max_kib / 1024)) MiB" >&2
  exit 1
fi
