#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention_check.h"
#include "kernels/check.h"
#include "kernels/copy_pages.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/top_logprobs.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/step_plan.h"

namespace lssar {
namespace {

constexpr unsigned kMaxWholePower = 1u << 24;

// The rows that the last plan was made for, by content: ops of one step bring the same again.
struct PlannedRows {
  std::vector<SequenceRows> sequences;  // their pages are not read
  std::vector<int32_t> pages;
  CudaPlanSetup setup;

  bool Holds(const RaggedRows& rows, const CudaPlanSetup& other) const {
    if (rows.sequences.size() != sequences.size() || sequences.empty() ||
        other.num_heads != setup.num_heads || other.page_tokens != setup.page_tokens) {
      return false;
    }
    size_t at = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const SequenceRows &a = sequences[s], &b = rows.sequences[s];
      if (a.first_row != b.first_row || a.num_rows != b.num_rows ||
          a.first_position != b.first_position) {
        return false;
      }
      const size_t num_pages = NumPages(b, setup);
      if (!std::equal(b.pages.begin(), b.pages.begin() + static_cast<ptrdiff_t>(num_pages),
                      pages.begin() + static_cast<ptrdiff_t>(at))) {
        return false;
      }
      at += num_pages;
    }
    return true;
  }
  static size_t NumPages(const SequenceRows& sequence, const CudaPlanSetup& setup) {
    const int num_keys = sequence.first_position + sequence.num_rows;
    return static_cast<size_t>((num_keys + setup.page_tokens - 1) / setup.page_tokens);
  }
};

// A step's tables in one piece of device memory.
class Tables {
 public:
  // Returns where the array will lie, as an offset.
  template <typename T>
  size_t Add(const std::vector<T>& array) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + array.size() * sizeof(T));
    if (!array.empty()) std::memcpy(bytes_.data() + at, array.data(), array.size() * sizeof(T));
    return at;
  }
  const std::vector<unsigned char>& Bytes() const { return bytes_; }
  void Clear() { bytes_.clear(); }

 private:
  std::vector<unsigned char> bytes_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(CudaBackendParts parts, const CudaDevice& device)
      : name_(std::move(parts.name)),
        driver_(std::move(parts.driver)),
        kernels_(parts.kernels),
        device_(device),
        tables_memory_(*driver_),
        scratch_memory_(*driver_),
        arrivals_memory_(*driver_),
        counters_memory_(*driver_),
        rows_memory_(*driver_),
        ids_memory_(*driver_),
        host_pool_(1),
        host_scratch_(1) {}

  std::string_view Name() const override { return name_; }
  std::string Describe() const override {
    return absl::StrCat(name_, " ", device_.name, ", ", device_.num_multiprocessors,
                        " multiprocessors, ", device_.memory_bytes >> 20, " MiB");
  }
  int NumThreads() const override { return 1; }

  absl::Status CheckAttention(const AttentionSpec& spec) const override {
    return CheckHostAttention(spec);
  }
  absl::Status FitLayout(KvLayout& layout) const override {
    if (layout.dtype == DType::kF32) {
      return absl::UnimplementedError(
          "K/V pages of fp32 are not kept by the cuda backend; it keeps fp16, bf16 and int8");
    }
    if (!IsCudaHeadDim(layout.head_dim)) {
      return absl::UnimplementedError(
          absl::StrCat("head_dim ", layout.head_dim,
                       " is not computed by the cuda backend; it computes 32, 64, 80 and 128"));
    }
    layout.key_order = KeyOrder::kSlotMajor;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override {
    return AllocateOnDevice(*driver_, num_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                     DType stored) override {
    return PackOnDevice(*driver_, view, stored);
  }
  absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) override {
    return CudaStatus(*driver_, driver_->CopyIn(to, from_host, num_bytes), "copying to the device");
  }
  absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) override {
    return CudaStatus(*driver_, driver_->CopyOut(to_host, from, num_bytes),
                      "copying from the device");
  }

  void Embed(const EmbedArgs& args) override;
  void Linear(const LinearArgs& args) override;
  void RopeWrite(const RopeWriteArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void Logits(const LogitsArgs& args) override;
  void TopLogprobs(const TopLogprobsArgs& args) override;
  void CopyPages(const CopyPagesArgs& args) override;
  absl::Status Synchronize() override;

 private:
  // Remembers the first thing that went wrong since Synchronize; false where `code` is one.
  bool Check(int code, const char* doing) {
    if (code != kCudaSuccess && status_.ok()) status_ = CudaStatus(*driver_, code, doing);
    return code == kCudaSuccess;
  }
  // At least num_bytes of the workspace; null, and an error kept, where there is no memory.
  template <typename T>
  T* Reserve(Workspace& workspace, size_t num_bytes) {
    absl::StatusOr<void*> address = workspace.Reserve(num_bytes);
    if (!address.ok() && status_.ok()) status_ = address.status();
    return address.ok() ? static_cast<T*>(*address) : nullptr;
  }

  // Plans the step and brings its tables to the device, unless they are there. False: an error.
  bool PrepareStep(const RaggedRows& rows, const KvLayout& layout);
  bool ReserveScratch(int num_heads, int head_dim);
  bool BeginCounting(const AttentionArgs& args);
  CudaPages PagesOf(const KvView& kv, int layer) const;
  const int32_t* CopyIds(std::span<const int32_t> ids);
  // x, or chosen rows of it, normalised and split into parts for a product with `weight`.
  bool SplitRows(CudaSplitArgs args, const CudaMatrix& weight);

  const std::string name_;
  const std::unique_ptr<CudaDriver> driver_;
  const CudaKernels kernels_;
  const CudaDevice device_;
  absl::Status status_;

  PlannedRows planned_;
  CudaStepPlan plan_;
  Tables tables_;
  struct {
    size_t rows = 0, pages = 0, decode_rows = 0, tiles = 0;
  } at_;  // in tables_
  CudaScratch scratch_;
  AttentionCounters* counters_ = nullptr;  // whose counts are on the device
  std::vector<int64_t> num_value_rows_;    // of each sequence, since the last Synchronize
  CudaSplitRows split_rows_;

  Workspace tables_memory_, scratch_memory_, arrivals_memory_, counters_memory_, rows_memory_,
      ids_memory_;
  std::vector<float> host_logits_;
  ThreadPool host_pool_;
  Scratch host_scratch_;
};

CudaPages CudaBackend::PagesOf(const KvView& kv, int layer) const {
  const KvLayout& layout = kv.layout;
  LSSAR_CHECK(layout.key_order == KeyOrder::kSlotMajor && layer >= 0 && layer < layout.num_layers);
  const size_t first = layout.BlockIndex(layer, 0, 0) * BytesOf(layout.dtype);
  const unsigned char* const tables = static_cast<unsigned char*>(tables_memory_.Address());
  return {.k = static_cast<unsigned char*>(kv.k) + first,
          .v = static_cast<unsigned char*>(kv.v) + first,
          .pages = reinterpret_cast<const int32_t*>(tables + at_.pages),
          .block_bytes = layout.BlockStride() * BytesOf(layout.dtype),
          .num_heads = layout.num_heads,
          .head_dim = layout.head_dim,
          .page_tokens = layout.page_tokens};
}

bool CudaBackend::PrepareStep(const RaggedRows& rows, const KvLayout& layout) {
  const CudaPlanSetup setup{.num_heads = layout.num_heads,
                            .page_tokens = layout.page_tokens,
                            .num_multiprocessors = device_.num_multiprocessors,
                            .has_clusters = device_.HasClusters()};
  if (planned_.Holds(rows, setup)) return true;
  PlanCudaStep(rows, setup, plan_);
  tables_.Clear();
  at_.rows = tables_.Add(plan_.rows);
  at_.pages = tables_.Add(plan_.pages);
  at_.decode_rows = tables_.Add(plan_.decode_rows);
  at_.tiles = tables_.Add(plan_.tiles);
  planned_.sequences.clear();
  void* const to = Reserve<void>(tables_memory_, tables_.Bytes().size());
  if (to == nullptr || !Check(driver_->CopyIn(to, tables_.Bytes().data(), tables_.Bytes().size()),
                              "copying a step's tables")) {
    return false;
  }
  planned_.sequences.assign(rows.sequences.begin(), rows.sequences.end());
  planned_.pages = plan_.pages;
  planned_.setup = setup;
  return true;
}

bool CudaBackend::ReserveScratch(int num_heads, int head_dim) {
  if (plan_.num_splits == 0) return true;
  const size_t num_splits = plan_.num_splits, num_scores = plan_.num_scores;
  const size_t floats = num_scores + num_splits * static_cast<size_t>(head_dim + 2);
  unsigned char* const memory =
      Reserve<unsigned char>(scratch_memory_, num_splits * sizeof(double) + floats * sizeof(float));
  // Blocks count themselves in a memory of their own: it must start, and stays, zero.
  unsigned* const arrivals =
      Reserve<unsigned>(arrivals_memory_, plan_.decode_rows.size() *
                                              static_cast<size_t>(num_heads) * sizeof(unsigned));
  if (memory == nullptr || arrivals == nullptr) return false;
  scratch_.sums = reinterpret_cast<double*>(memory);
  scratch_.scores = reinterpret_cast<float*>(scratch_.sums + num_splits);
  scratch_.maxima = scratch_.scores + num_scores;
  scratch_.partials = scratch_.maxima + num_splits;
  scratch_.arrivals = arrivals;
  return true;
}

// Counts stay on the device until Synchronize, or until somebody else's are to be counted.
bool CudaBackend::BeginCounting(const AttentionArgs& args) {
  const size_t num_sequences = args.rows->sequences.size();
  if (counters_ != args.counters || num_value_rows_.size() != num_sequences) {
    if (absl::Status status = Synchronize(); !status.ok()) {
      status_ = status;
      return false;
    }
    const size_t num_bytes = num_sequences * sizeof(int64_t);
    void* const counts = Reserve<void>(counters_memory_, num_bytes);
    if (counts == nullptr || !Check(driver_->Clear(counts, num_bytes), "clearing counters")) {
      return false;
    }
    counters_ = args.counters;
    num_value_rows_.assign(num_sequences, 0);
  }
  for (size_t s = 0; s < num_sequences; ++s) {
    const SequenceRows& sequence = args.rows->sequences[s];
    const int64_t first = sequence.first_position + 1;
    const int64_t last = sequence.first_position + sequence.num_rows;
    num_value_rows_[s] += args.kv.layout.num_heads * (first + last) * sequence.num_rows / 2;
  }
  return true;
}

void CudaBackend::Attention(const AttentionArgs& args) {
  LSSAR_CHECK(args.rows != nullptr && args.q != nullptr && args.out != nullptr);
  LSSAR_CHECK(args.q != args.out);
  const KvLayout& layout = args.kv.layout;
  if (!status_.ok() || !PrepareStep(*args.rows, layout) ||
      !ReserveScratch(layout.num_heads, layout.head_dim)) {
    return;
  }
  if (args.counters != nullptr && !BeginCounting(args)) return;

  const double p = args.spec.p;
  const bool is_whole = p == std::floor(p) && p < double{kMaxWholePower};
  const unsigned char* const tables = static_cast<unsigned char*>(tables_memory_.Address());
  CudaAttentionArgs to{
      .pages = PagesOf(args.kv, args.layer),
      .q = args.q,
      .out = args.out,
      .counters = args.counters == nullptr
                      ? nullptr
                      : static_cast<unsigned long long*>(counters_memory_.Address()),
      .decode_rows = nullptr,
      .num_decode_rows = 0,
      .max_splits = 0,
      .tiles = reinterpret_cast<const CudaTile*>(tables + at_.tiles),
      .num_tiles = static_cast<int>(plan_.tiles.size()),
      .scratch = scratch_,
      .kind = args.spec.kind,
      .p = static_cast<float>(p),
      .whole_p = is_whole ? static_cast<unsigned>(p) : 0,
      .floor = static_cast<float>(std::pow(double{kNegligibleWeight}, 1.0 / p) * (1 - 0x1p-20))};
  if (to.num_tiles > 0 &&
      !Check(kernels_.prefill(to, layout.dtype, driver_->Stream()), "attention of a prompt")) {
    return;
  }
  for (const CudaDecodeBatch& batch : plan_.batches) {
    to.decode_rows = reinterpret_cast<const CudaDecodeRow*>(tables + at_.decode_rows) + batch.first;
    to.num_decode_rows = batch.count;
    to.max_splits = batch.max_splits;
    const int code =
        batch.cluster_blocks > 0
            ? kernels_.cluster_decode(to, layout.dtype, batch.cluster_blocks, driver_->Stream())
            : kernels_.split_decode(to, layout.dtype, driver_->Stream());
    if (!Check(code, "attention of a decode step")) return;
  }
}

void CudaBackend::RopeWrite(const RopeWriteArgs& args) {
  LSSAR_CHECK(args.rows != nullptr && args.qkv != nullptr && args.q != nullptr);
  LSSAR_CHECK(args.kv.layout.head_dim % 2 == 0);
  if (!status_.ok() || !PrepareStep(*args.rows, args.kv.layout)) return;
  const unsigned char* const tables = static_cast<unsigned char*>(tables_memory_.Address());
  Check(kernels_.rope_write({.pages = PagesOf(args.kv, args.layer),
                             .rows = reinterpret_cast<const CudaRow*>(tables + at_.rows),
                             .qkv = args.qkv,
                             .rope = args.rope,
                             .q = args.q,
                             .num_rows = args.rows->num_rows,
                             .dtype = args.kv.layout.dtype,
                             .half_split = args.rope_layout == RopeLayout::kHalfSplit,
                             .normalize = args.normalize},
                            driver_->Stream()),
        "writing keys and values");
}

const int32_t* CudaBackend::CopyIds(std::span<const int32_t> ids) {
  int32_t* const to = Reserve<int32_t>(ids_memory_, ids.size_bytes());
  if (to == nullptr || !Check(driver_->CopyIn(to, ids.data(), ids.size_bytes()), "copying ids")) {
    return nullptr;
  }
  return to;
}

void CudaBackend::Embed(const EmbedArgs& args) {
  if (!status_.ok() || args.ids.empty()) return;
  const int32_t* const ids = CopyIds(args.ids);
  if (ids == nullptr) return;
  const CudaMatrix& table = static_cast<const DeviceMatrix&>(*args.table).View();
  Check(kernels_.embed({.ids = ids,
                        .num_ids = static_cast<int>(args.ids.size()),
                        .table = table,
                        .out = args.out},
                       driver_->Stream()),
        "embedding");
}

bool CudaBackend::SplitRows(CudaSplitArgs args, const CudaMatrix& weight) {
  const size_t num_rows = static_cast<size_t>(args.num_rows);
  const size_t num_elements = num_rows * static_cast<size_t>(weight.padded_cols);
  const size_t parts_bytes = num_elements * std::max(kMaxRowParts * size_t{2}, sizeof(float));
  unsigned char* const memory =
      Reserve<unsigned char>(rows_memory_, parts_bytes + num_rows * sizeof(float));
  if (memory == nullptr) return false;
  split_rows_ = {.parts = memory, .inverse = reinterpret_cast<float*>(memory + parts_bytes)};
  args.width = weight.num_cols;
  args.padded_width = weight.padded_cols;
  args.dtype = weight.dtype;
  args.to = split_rows_;
  return Check(kernels_.split_rows(args, driver_->Stream()), "normalising rows");
}

void CudaBackend::Linear(const LinearArgs& args) {
  LSSAR_CHECK(args.x != args.out);
  if (!status_.ok() || args.num_rows == 0) return;
  const CudaMatrix& weight = static_cast<const DeviceMatrix&>(*args.weight).View();
  if (!SplitRows({.x = args.x,
                  .norm_weight = args.norm.weight,
                  .norm_bias = args.norm.bias,
                  .epsilon = args.norm.epsilon,
                  .num_rows = args.num_rows,
                  .to = {}},
                 weight)) {
    return;
  }
  Check(kernels_.linear({.x = split_rows_,
                         .num_rows = args.num_rows,
                         .weight = weight,
                         .bias = args.bias,
                         .residual = args.residual,
                         .gelu = args.activation == Activation::kGeluTanh,
                         .out = args.out},
                        driver_->Stream()),
        "a matrix product");
}

void CudaBackend::Logits(const LogitsArgs& args) {
  if (!status_.ok() || args.row_ids.empty()) return;
  const int32_t* const row_ids = CopyIds(args.row_ids);
  if (row_ids == nullptr) return;
  const CudaMatrix& weight = static_cast<const DeviceMatrix&>(*args.weight).View();
  const int num_rows = static_cast<int>(args.row_ids.size());
  if (!SplitRows({.x = args.x,
                  .row_ids = row_ids,
                  .norm_weight = args.norm.weight,
                  .norm_bias = args.norm.bias,
                  .epsilon = args.norm.epsilon,
                  .num_rows = num_rows,
                  .to = {}},
                 weight)) {
    return;
  }
  Check(kernels_.linear(
            {.x = split_rows_, .num_rows = num_rows, .weight = weight, .out = args.logits},
            driver_->Stream()),
        "logits");
}

// On the host: what crosses the bus is whole rows, which only a scoring request asks for.
void CudaBackend::TopLogprobs(const TopLogprobsArgs& args) {
  host_logits_.resize(args.targets.size() * static_cast<size_t>(args.vocab));
  const bool copied = status_.ok() && Check(driver_->CopyOut(host_logits_.data(), args.logits,
                                                             host_logits_.size() * sizeof(float)),
                                            "copying logits");
  if (!copied) {
    for (RowLogprobs& out : args.out) out = {.top = {}, .finite = false};
    return;
  }
  TopLogprobsArgs on_host = args;
  on_host.logits = host_logits_.data();
  TopLogprobsOnCpu(on_host, host_pool_, host_scratch_);
}

void CudaBackend::CopyPages(const CopyPagesArgs& args) {
  ForEachPageRun(args, [this](void* to, const void* from, size_t num_bytes) {
    if (status_.ok()) Check(driver_->CopyInside(to, from, num_bytes), "copying pages");
  });
}

absl::Status CudaBackend::Synchronize() {
  Check(driver_->Synchronize(), "a step");
  if (counters_ != nullptr && status_.ok()) {
    const size_t count = num_value_rows_.size();
    std::vector<int64_t> read(count);
    const size_t num_bytes = count * sizeof(int64_t);
    if (Check(driver_->CopyOut(read.data(), counters_memory_.Address(), num_bytes),
              "copying counters")) {
      for (size_t s = 0; s < count; ++s) {
        counters_[s].num_value_rows += num_value_rows_[s];
        counters_[s].num_value_rows_read += read[s];
      }
    }
  }
  counters_ = nullptr;
  num_value_rows_.clear();
  return std::exchange(status_, absl::OkStatus());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(CudaBackendParts parts, int device_idx) {
  absl::StatusOr<CudaDevice> device = OpenCudaDevice(*parts.driver, device_idx);
  if (!device.ok()) return device.status();
  return std::make_unique<CudaBackend>(std::move(parts), *device);
}

}  // namespace lssar
