// The memory of the paged K and V pools, on the backend that computes with them.
#ifndef LSSAR_RUNTIME_KV_CACHE_H_
#define LSSAR_RUNTIME_KV_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "models/config.h"
#include "runtime/engine_options.h"

namespace lssar {

// Which sequence uses which page is the BlockManager's.
class KvCache {
 public:
  // Sizes the pools from `options`: kv_cache_bytes, max_model_len, page_size, kv_cache_dtype.
  // `backend` must outlive the cache.
  // Errors  RESOURCE_EXHAUSTED: not enough for one sequence of max_model_len (the message shows the
  //         arithmetic), or the backend has less memory
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const ModelConfig& config,
                                                         const EngineOptions& options,
                                                         Backend* backend);

  // Whether Create finds memory enough once model_bytes of what the backend has free are taken by
  // weights and activations; ok if they alone are more than that, which loading them reports.
  // Requires  options that Engine::Create accepts
  // Errors    those of Create
  static absl::Status CheckFits(const ModelConfig& config, const EngineOptions& options,
                                int64_t model_bytes, Backend* backend);

  const KvView& View() const { return view_; }
  const KvLayout& Layout() const { return view_.layout; }
  void CopyPage(int32_t from, int32_t to);

 private:
  KvCache(Backend* backend, const KvLayout& layout, std::unique_ptr<Buffer> k,
          std::unique_ptr<Buffer> v);

  Backend* const backend_;
  const std::unique_ptr<Buffer> k_, v_;
  const KvView view_;
};

// Bytes of memory that this process may still allocate: the least of the machine's MemAvailable and
// what each control group around this process still allows (v2, and v1's memory controller) once it
// has taken back the inactive pages of files.
// nullopt: the kernel does not tell. Tests pass a `root` that is put before every path.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace lssar

#endif  // LSSAR_RUNTIME_KV_CACHE_H_
