// The backend interface: memory, packed weights and the ops of ops.h on one device.
// Implementations: reference (double accumulators, defines the ops), cpu, cuda.
#ifndef LSSAR_KERNELS_BACKEND_H_
#define LSSAR_KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/feature.h"
#include "kernels/ops.h"

namespace lssar {

// Memory that a backend owns: 64-byte aligned, zeroed.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* Address() = 0;
  virtual size_t NumBytes() const = 0;

  template <typename T>
  T* As() {
    return static_cast<T*>(Address());
  }
};

// A weight matrix [rows, cols] = [out_features, in_features] in the layout of its backend.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int NumRows() const = 0;
  virtual int NumCols() const = 0;
  virtual DType StoredType() const = 0;
  virtual size_t NumBytes() const = 0;
};

// A weight matrix in host memory. `transposed`: stored as [cols, rows] (GPT-2's Conv1D).
struct MatrixView {
  const void* elements = nullptr;
  DType dtype = DType::kF32;
  int num_rows = 0;
  int num_cols = 0;
  bool transposed = false;
  // bf16 bits [num_rows, ceil(num_cols / GroupColsOf(dtype))] of an int8 or int4 matrix, which is
  // not transposed: an element stands for its value times the scale of its row and group
  // (quantize.h). Rows of int4 have Int4RowBytes(num_cols) bytes. Null: a float type.
  const uint16_t* scales = nullptr;
};

// The arguments of one step, for RunStep.
struct StepArgs {
  const void* owner = nullptr;  // identifies the model whose ops run
  const RaggedBatch* rows = nullptr;
  std::span<const int32_t> ids;  // of Embed
  KvView kv;
  AttentionStats* counters = nullptr;  // of Attention
  int max_rows = 0;                    // capacity of the ops' arrays, in rows
};

// All methods are pure: a backend that wraps another one must forward each of them. Backends whose
// memory is host memory derive from HostBackend (host_backend.h).
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view Name() const = 0;  // "reference" | "cpu" | "cuda:0"
  virtual std::string Describe() const = 0;   // for logs: "cpu AVX3_DL, 2 threads"
  virtual int NumThreads() const = 0;

  // Errors  UNIMPLEMENTED: this backend does not compute the kind (names the kind and those that it
  //         computes); INVALID_ARGUMENT: CheckAttentionSpec's
  virtual absl::Status CheckAttention(const AttentionSpec& spec) const = 0;

  // True if the ops compute the feature, by the backend's column of kFeatures.
  virtual bool Supports(Feature feature) const = 0;

  // Adapts `layout` to this backend: sets the order of K.
  // Errors  UNIMPLEMENTED: this backend does not support the dtype or head_dim (names it and those
  //         that it supports)
  virtual absl::Status FitLayout(KvLayout& layout) const = 0;

  // True if the batch invariance of ops.h holds for every op.
  virtual bool IsBatchInvariant() const = 0;

  // Bytes that Allocate can still give, if the device has its own memory. nullopt: host memory.
  virtual absl::StatusOr<std::optional<int64_t>> FreeBytes() = 0;

  // Errors  RESOURCE_EXHAUSTED: not enough memory
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) = 0;

  // Takes now what Norm and Linear need beside their arguments in steps of up to max_rows rows of
  // at most max_width floats, so that what FreeBytes returns afterwards is left for a KV cache.
  // Without it, the first such step takes it.
  // Errors  RESOURCE_EXHAUSTED: not enough memory
  virtual absl::Status ReserveSteps(int max_rows, int max_width) = 0;

  // Copies and repacks `view`, rounded to nearest, ties to even; to int8 and int4 as in quantize.h.
  // Elements that have the type already keep their bits and scales.
  // Errors  INVALID_ARGUMENT: `view` is int8 or int4 without scales, or `stored` cannot hold a
  //         weight; UNIMPLEMENTED: the backend does not compute `stored` (cuda: int4);
  //         RESOURCE_EXHAUSTED: not enough memory
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                             DType stored) = 0;

  // Copies between host memory and the backend's memory. After CopyIn returns, the caller may
  // change the host memory, and later ops see the copy. CopyOut returns when the copy is complete.
  virtual absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) = 0;
  virtual absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) = 0;

  // The ops of ops.h. They may run asynchronously, in order. Synchronize waits for them and returns
  // the device's error.
  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void Norm(const NormArgs& args) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void RopeWrite(const RopeWriteArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void Logits(const LogitsArgs& args) = 0;
  virtual void Sample(const SampleArgs& args) = 0;
  virtual void CopyPages(const CopyPagesArgs& args) = 0;
  virtual absl::Status Synchronize() = 0;

  // Runs a step's ops from Embed to Attention, which `ops` calls. A backend may record
  // them (a CUDA graph) and replay the record in a later step of the same owner without calling
  // `ops`.
  // Requires  `ops` calls only these five, for all rows of `args` or all ids; its other arguments
  //           are the same in every step of one owner
  // Ensures   the same bits as the ops alone; rows [rows->num_rows, max_rows) of arrays may be
  //           written
  virtual void RunStep(const StepArgs& args, absl::FunctionRef<void()> ops) = 0;

  // Prepares RunStep for steps of up to max_rows rows that each attend to at most max_keys keys
  // (CUDA graphs of all shapes of decode steps), so that no request waits for it. `args`, `ops`: of
  // RunStep, for a step of one row, whose ops are called any number of times.
  // Ensures   slots of K/V that the row writes are overwritten, and nothing else that counts.
  //           Synchronize reports errors
  virtual void PrepareSteps(const StepArgs& args, int max_rows, int max_keys,
                            absl::FunctionRef<void()> ops) = 0;

  // True if the device failed permanently: it rejects every later call of this process, which must
  // exit. To be called after an error. Waits for running ops.
  virtual bool IsLost() = 0;
};

// Errors  UNIMPLEMENTED: `backend` does not compute one of `features`; names config.json's field,
//         its value, the values that the backend computes, and what to do
absl::Status CheckFeatures(const Backend& backend, std::span<const Feature> features);

struct BackendOptions {
  std::string name = "cpu";  // a device: "cpu" | "reference" | "cuda" | "cuda:N", the Nth from 0
  // cpu. 0: one for each of `cpus`, or for each CPU that this process may use, at most its cgroup's
  // quota.
  int num_threads = 0;
  std::vector<int> cpus =
      {};  // cpu: thread i runs on cpus[i] only; empty: where the kernel puts it
  // cpu: restricts the backend to one instruction set, by Highway's name ("AVX2", "AVX3", "SSE4",
  // ...). Empty: the best of this machine. For tests and comparisons.
  std::string instruction_set = "";
  // False on cuda: GEMMs of more than 8 rows run through cuBLASLt, with x rounded once to the
  // weights' type. That adds an error of 2^-11 (fp16, int8) or 2^-8 (bf16) of sum_k |x_k w_k| to
  // Linear's and Logits'; with fp16 an |x| above 65504 becomes infinite. The bits of a row then
  // depend on the number of rows of its step. True: our own kernels run all GEMMs, which is slow
  // for prompts. cpu and reference are batch-invariant always.
  bool batch_invariant = false;
  // cuda: takes one sentence for each shape of GEMM that the library meets: which algorithm runs
  // it, or that our own kernels do. Null: nobody. Called by the thread that calls the op.
  std::function<void(std::string_view)> log = nullptr;
};

// One option of BackendOptions, as a program offers it in flags or a configuration file. Programs
// list BackendFlags() and need no name of a device or of a backend's option.
struct BackendFlag {
  std::string name;        // "device"
  std::string value_name;  // "DEVICE"; empty: a switch, whose values are "true" and "false"
  std::string help;        // with default and limits
  // Parses `value` into `options`.
  // Errors  INVALID_ARGUMENT, without the flag's name: "it must be ..."
  absl::Status (*parse)(const std::string& value, BackendOptions* options);
};
std::vector<BackendFlag> BackendFlags();

// Errors  INVALID_ARGUMENT, with the name of the flag: an option that the device does not have,
//         CPUs that this process may not use, or another number of threads than of CPUs
absl::Status CheckBackendFlags(const BackendOptions& options);

// What makes these options slow, one sentence each: more threads than CPUs or than the cgroup's CPU
// quota.
std::vector<std::string> BackendWarnings(const BackendOptions& options);

// Errors  INVALID_ARGUMENT: unknown name, num_threads not in [0, 1024], cpus that do not fit, an
//         instruction set that is missing here, no CUDA device N. FAILED_PRECONDITION:
//         cuda in a build without it, on a machine without a device, or with a driver or a device
//         too old for this build, or without cuBLASLt and batch_invariant
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

}  // namespace lssar

#endif  // LSSAR_KERNELS_BACKEND_H_
