// The machine that runs the ops: reference (double accumulators, the definition), cpu, cuda.
#ifndef LSSAR_KERNELS_BACKEND_H_
#define LSSAR_KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace lssar {

// Owned memory of a backend, 64-byte aligned, zeroed.
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

// A weight matrix [rows, cols] (out_features, in_features) in the form its backend likes best.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int NumRows() const = 0;
  virtual int NumCols() const = 0;
  virtual DType StoredType() const = 0;
  virtual size_t NumBytes() const = 0;
};

// A weight matrix in host memory, of a float type. `transposed`: elements lie as [cols, rows]
// (GPT-2's Conv1D).
struct MatrixView {
  const void* elements = nullptr;
  DType dtype = DType::kF32;
  int num_rows = 0;
  int num_cols = 0;
  bool transposed = false;
};

// A step for RunStep.
struct StepArgs {
  const void* owner = nullptr;  // whose ops: a model
  const RaggedBatch* rows = nullptr;
  std::span<const int32_t> ids;  // that Embed is given
  KvView kv;
  AttentionStats* counters = nullptr;  // that Attention is given
  int max_rows = 0;                    // that the ops' arrays have room for
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view Name() const = 0;  // "reference" | "cpu" | "cuda:0"
  virtual std::string Describe() const = 0;   // for logs: "cpu AVX3_DL, 2 threads"
  virtual int NumThreads() const = 0;

  // UNIMPLEMENTED with a sentence that names kind and what this build computes; OK otherwise.
  virtual absl::Status CheckAttention(const AttentionSpec& spec) const = 0;

  // Makes of `layout` one that this backend keeps its pages in: sets the order of K.
  // UNIMPLEMENTED with a sentence that names type or head_dim and what this backend computes.
  virtual absl::Status FitLayout(KvLayout& layout) const {
    layout.key_order = KeyOrder::kDimMajor;
    return absl::OkStatus();
  }

  // Whether ops.h's batch invariance holds without exception.
  virtual bool IsBatchInvariant() const { return true; }

  // Bytes that Allocate can still give, of a device with memory of its own; nullopt: the host's.
  virtual absl::StatusOr<std::optional<int64_t>> FreeBytes() { return std::nullopt; }
  // RESOURCE_EXHAUSTED when the machine has not that much memory.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) = 0;
  // Copies and repacks; `view` may go afterwards. Weights are stored as `stored`, rounded to
  // nearest, ties to even; int8 as quantize.h has it. INVALID_ARGUMENT: int8 given, or a weight
  // that `stored` cannot hold. RESOURCE_EXHAUSTED: no memory.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                             DType stored) = 0;

  // Both directions between host memory and the backend's. CopyIn returns when the host's memory
  // may change, and ops called after it see the copy; CopyOut, when the copy is there.
  virtual absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) = 0;
  virtual absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) = 0;

  // Ops of ops.h. They may run later, in order; Synchronize waits and gives a device's error.
  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void RopeWrite(const RopeWriteArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void Logits(const LogitsArgs& args) = 0;
  virtual void Sample(const SampleArgs& args) = 0;
  virtual void CopyPages(const CopyPagesArgs& args) = 0;
  virtual absl::Status Synchronize() = 0;

  // A step's Embed, Linear, RopeWrite and Attention, which `ops` calls. A backend may keep what
  // they come to (a CUDA graph), and do it again in another step of the same owner without a call.
  // Requires  `ops` calls these four alone, each for all rows of `args` or all ids; what else it
  //           gives them is the same in every step of one owner
  // Ensures   the same bits as the ops by themselves; rows of arrays in [rows->num_rows, max_rows)
  //           may be written
  virtual void RunStep(const StepArgs& args, absl::FunctionRef<void()> ops);

  // Whether the device has failed for good: it refuses every further call of this process, which
  // can only end. Asked after an error; waits for what still runs.
  virtual bool IsLost() { return false; }
};

struct BackendOptions {
  std::string name = "cpu";  // "cpu" | "reference" | "cuda" | "cuda:N", N being the device
  int num_threads = 0;       // 0: one per core this process may run on
  // Restricts the cpu backend to one instruction set by Highway's name ("AVX2", "AVX3", "SSE4",
  // ...); empty: the best this machine has. For tests and for comparing.
  std::string instruction_set = "";
  // cuda: products of more than 64 rows by cuBLASLt, x rounded once to the weights' type: besides
  // Linear's accuracy, |d| is 2^-11 (fp16) or 2^-8 (bf16) of sum_k |x_k w_k| then, and an x past
  // 65504 beside fp16 is infinite. A row's bits then depend on how many rows its step had.
  bool fast_gemm = false;
};

// Errors  INVALID_ARGUMENT: unknown name, num_threads out of [0, 1024], an instruction set that
// this
//         machine or build does not have (the message lists those it has), no CUDA device N;
//         FAILED_PRECONDITION: cuda in a build without it, or on a machine without a device, or
//         with a driver or a device too old for this build; fast products without cuBLASLt
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

}  // namespace lssar

#endif  // LSSAR_KERNELS_BACKEND_H_
