#include "tests/kernels/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/str_cat.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

void Normalize(float* x, int dim) {
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += double{x[i]} * double{x[i]};
  for (int i = 0; i < dim; ++i) x[i] = static_cast<float>(x[i] / std::sqrt(squares));
}

void FillRandom(std::mt19937& random, float scale, float* x, int dim) {
  std::normal_distribution<float> normal;
  for (int i = 0; i < dim; ++i) x[i] = scale * normal(random);
}

}  // namespace

SequenceVectors::SequenceVectors(int tokens, int heads, int dim, uint32_t seed, Content content)
    : num_tokens(tokens), num_heads(heads), head_dim(dim) {
  q.resize(size_t(tokens) * RowFloats());
  k.resize(q.size());
  v.resize(q.size());
  std::mt19937 random(seed);
  std::vector<float> topic(RowFloats());
  std::vector<float> noise(static_cast<size_t>(dim));
  for (int head = 0; head < heads; ++head) {
    FillRandom(random, 1, topic.data() + head * dim, dim);
    Normalize(topic.data() + head * dim, dim);
  }
  for (int row = 0; row < tokens; ++row) {
    for (int head = 0; head < heads; ++head) {
      const size_t at = (size_t(row) * size_t(heads) + size_t(head)) * size_t(dim);
      const float* t = topic.data() + head * dim;
      FillRandom(random, 1, &q[at], dim);
      FillRandom(random, 1, &k[at], dim);
      FillRandom(random, 1, &v[at], dim);
      Normalize(&q[at], dim);
      Normalize(&k[at], dim);
      const bool on_topic = random() % 8 == 0;
      const float nearness = content == Content::kTopical && on_topic ? 2.0f : 0.0f;
      for (int i = 0; i < dim; ++i) {
        if (content == Content::kTopical) q[at + size_t(i)] += 2 * t[i];
        k[at + size_t(i)] += nearness * t[i];
        if (content == Content::kEqualK) k[at + size_t(i)] = t[i];
        if (content == Content::kNearlyEqualK) k[at + size_t(i)] = t[i] + 1e-3f * k[at + size_t(i)];
      }
      Normalize(&q[at], dim);
      Normalize(&k[at], dim);
      if (content == Content::kZeroQ) std::fill_n(&q[at], dim, 0.0f);
      if (content == Content::kZeroK) std::fill_n(&k[at], dim, 0.0f);
    }
  }
}

PagedKv::PagedKv(Backend& backend, const std::vector<const SequenceVectors*>& sequences,
                 int page_size, DType dtype, int num_kv_heads)
    : backend_(backend) {
  KvLayout& layout = layout_;
  layout = {.num_layers = kCaseLayer + 1,
            .num_kv_heads = num_kv_heads == 0 ? sequences.front()->num_heads : num_kv_heads,
            .head_dim = sequences.front()->head_dim,
            .page_size = page_size,
            .num_pages = 1,  // page 0 belongs to no sequence
            .dtype = dtype};
  for (const SequenceVectors* sequence : sequences) {
    pages_.emplace_back();
    for (int i = 0; i < layout.PagesFor(sequence->num_tokens); ++i) {
      pages_.back().push_back(layout.num_pages++);
    }
  }
  LSSAR_CHECK(backend.FitLayout(layout).ok());
  // Scattered: the ids follow neither the order of tokens nor that of sequences.
  std::vector<int32_t> ids;
  for (int i = 0; i < layout.num_pages; ++i) ids.push_back(i);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(7));
  for (std::vector<int32_t>& pages : pages_) {
    for (int32_t& page : pages) page = ids[static_cast<size_t>(page)];
  }

  k_pool_ = *backend.Allocate(layout.PoolBytes());
  v_pool_ = *backend.Allocate(layout.ValuePoolBytes());
  // Bytes of all ones are NaN in every float type. In int8 the elements are -1 and the scales are
  // NaN.
  k_.assign(layout.PoolBytes(), '\xFF');
  v_.assign(layout.ValuePoolBytes(), '\xFF');
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceVectors& from = *sequences[s];
    const size_t dim = static_cast<size_t>(from.head_dim);
    for (int row = 0; row < from.num_tokens; ++row) {
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        const int source = head * (from.num_heads / layout.num_kv_heads);
        const size_t at = (size_t(row) * size_t(from.num_heads) + size_t(source)) * dim;
        Key(s, row, head).Store({&from.k[at], dim});
        Value(s, row, head).Store({&from.v[at], dim});
      }
    }
  }
}

KvView PagedKv::Upload() const {
  LSSAR_CHECK(backend_.CopyIn(k_pool_->Address(), k_.data(), k_.size()).ok());
  LSSAR_CHECK(backend_.CopyIn(v_pool_->Address(), v_.data(), v_.size()).ok());
  return {.layout = layout_, .k = k_pool_->Address(), .v = v_pool_->Address()};
}

KvBlock PagedKv::Block(size_t sequence, int position, int head) const {
  const int page = pages_[sequence][static_cast<size_t>(position / layout_.page_size)];
  return layout_.Block(kCaseLayer, page, head);
}

KvRow PagedKv::Key(size_t sequence, int position, int head) {
  return KeyRow({.layout = layout_, .k = k_.data(), .v = v_.data()},
                Block(sequence, position, head), position % layout_.page_size);
}

KvRow PagedKv::Value(size_t sequence, int position, int head) {
  return ValueRow({.layout = layout_, .k = k_.data(), .v = v_.data()},
                  Block(sequence, position, head), position % layout_.page_size);
}

std::vector<float> Attend(Backend& backend, const AttentionSpec& spec,
                          const std::vector<const SequenceVectors*>& sequences, const PagedKv& kv,
                          const std::vector<RowRange>& ranges,
                          std::vector<AttentionStats>* counters,
                          const std::atomic<bool>* interrupt) {
  std::vector<SequenceSlice> rows;
  std::vector<float> q;
  int num_rows = 0;
  for (const RowRange& range : ranges) {
    rows.push_back({.first_row = num_rows,
                    .num_rows = range.count,
                    .first_position = range.first,
                    .pages = kv.Pages(range.sequence)});
    num_rows += range.count;
    const SequenceVectors& from = *sequences[range.sequence];
    const auto first = from.q.begin() + range.first * static_cast<int>(from.RowFloats());
    q.insert(q.end(), first, first + range.count * static_cast<int>(from.RowFloats()));
  }
  const RaggedBatch ragged{.num_rows = num_rows, .sequences = rows};
  Floats q_floats(backend, q);
  Floats out(backend, std::vector<float>(q.size(), std::numeric_limits<float>::quiet_NaN()));
  if (counters != nullptr) counters->resize(ranges.size());
  backend.Attention({.rows = &ragged,
                     .layer = kCaseLayer,
                     .num_heads = sequences.front()->num_heads,
                     .spec = spec,
                     .q = q_floats.Address(),
                     .kv = kv.Upload(),
                     .out = out.Address(),
                     .counters = counters != nullptr ? counters->data() : nullptr,
                     .interrupt = interrupt});
  LSSAR_CHECK(backend.Synchronize().ok());
  return out.Values();
}

std::vector<float> AttendAll(Backend& backend, const AttentionSpec& spec,
                             const SequenceVectors& sequence, int page_size, DType dtype) {
  const PagedKv kv(backend, {&sequence}, page_size, dtype);
  return Attend(backend, spec, {&sequence}, kv, {{.count = sequence.num_tokens}});
}

std::vector<AttentionSpec> FamilySpecs() {
  constexpr int kMaxPositionEmbeddings = 100;
  std::vector<AttentionSpec> specs;
  for (const AttentionKindInfo& info : kAttentionKinds) {
    if (info.kind == AttentionKind::kPhi) continue;
    specs.push_back({.kind = info.kind, .max_position_embeddings = kMaxPositionEmbeddings});
  }
  for (const PhiInfo& info : kPhis) specs.push_back({.kind = AttentionKind::kPhi, .phi = info.phi});
  return specs;
}

std::vector<AttentionSpec> DistanceSpecs() {
  constexpr AttentionKind kSoftmax = AttentionKind::kSoftmax;
  return {{.kind = kSoftmax, .window = 1},
          {.kind = kSoftmax, .window = 20},
          {.kind = kSoftmax, .window = 230},
          {.kind = kSoftmax, .window = 230, .has_alibi = true},
          {.kind = kSoftmax, .has_alibi = true}};
}

std::string NameOfSpec(const AttentionSpec& spec) {
  return StrCat("kind ", NameOf(spec.kind), ", phi ", int(spec.Form().phi), ", p ", spec.p,
                ", window ", spec.window, spec.has_alibi ? ", ALiBi" : "");
}

bool SupportsAttention(const Backend& backend, const AttentionSpec& spec) {
  const absl::Status status = backend.CheckAttention(spec);
  EXPECT_TRUE(status.ok() || (absl::IsUnimplemented(status) && backend.Name().starts_with("cuda")))
      << NameOfSpec(spec) << ": " << status;
  return status.ok();
}

double LargestValue(const SequenceVectors& sequence) {
  double largest = 0;
  for (float v : sequence.v) largest = std::max(largest, std::fabs(double{v}));
  return largest;
}

}  // namespace lssar
