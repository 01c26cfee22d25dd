// A grammar for tests of the runtime, over token ids: which may come is a hash of those before.
#ifndef LSSAR_TESTS_RUNTIME_FAKE_GRAMMAR_H_
#define LSSAR_TESTS_RUNTIME_FAKE_GRAMMAR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "models/text/grammar.h"
#include "tests/support/fake_model.h"

namespace lssar {

struct FakeRules {
  int max_tokens = 1 << 20;      // behind so many no id may come
  int error_percent = 0;         // of the texts: a mask takes too much work
  int accept_error_percent = 0;  // the same of Accept
};

class FakeMatcher final : public GrammarMatcher {
 public:
  static constexpr int kNumIds = 64;  // FakeModel's

  explicit FakeMatcher(const FakeRules& rules) : rules_(rules) {}

  // Id 2 + i % 3 may always come, EOS never.
  static bool IsAllowed(uint64_t hash, int num_tokens, int32_t id) {
    return id != FakeModel::kEosId &&
           (FakeHash(hash, uint64_t(id)) % 4 == 0 || id == 2 + num_tokens % 3);
  }

  absl::Status FillMask(std::span<uint32_t> mask) override {
    EXPECT_FALSE(is_broken_);
    EXPECT_EQ(mask.size(), NumMaskWords(size_t(kNumIds)));
    if (IsError(FakeHash(Hash(), 77), rules_.error_percent)) return Broken();
    std::ranges::fill(mask, 0u);
    if (int(tokens_.size()) >= rules_.max_tokens) return absl::OkStatus();
    for (int32_t id = 0; id < kNumIds; ++id) {
      if (IsAllowed(Hash(), int(tokens_.size()), id)) mask[size_t(id) / 32] |= 1u << (id % 32);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Accept(int32_t id) override {
    EXPECT_FALSE(is_broken_);
    if (IsError(FakeHash(Hash(), uint64_t(id) + 100), rules_.accept_error_percent)) return Broken();
    const bool fits =
        int(tokens_.size()) < rules_.max_tokens && IsAllowed(Hash(), int(tokens_.size()), id);
    if (fits) tokens_.push_back(id);
    return fits;
  }

  void Rollback(int num_tokens) override {
    EXPECT_FALSE(is_broken_);
    EXPECT_GT(num_tokens, 0);
    ASSERT_LE(num_tokens, int(tokens_.size()));
    tokens_.resize(tokens_.size() - size_t(num_tokens));
  }

  bool IsComplete() const override { return tokens_.size() % 5 == 4; }

 private:
  uint64_t Hash() const {
    uint64_t hash = 5;
    for (const int32_t id : tokens_) hash = FakeHash(hash, uint64_t(id));
    return hash;
  }
  static bool IsError(uint64_t hash, int percent) { return int(hash % 100) < percent; }
  absl::Status Broken() {
    is_broken_ = true;
    return absl::ResourceExhaustedError("too much work");
  }

  const FakeRules rules_;
  std::vector<int32_t> tokens_;
  bool is_broken_ = false;
};

class FakeGrammar final : public Grammar {
 public:
  explicit FakeGrammar(const FakeRules& rules = {}) : rules_(rules) {}
  std::unique_ptr<GrammarMatcher> NewMatcher() const override {
    return std::make_unique<FakeMatcher>(rules_);
  }
  int64_t NumBytes() const override { return 1; }

 private:
  const FakeRules rules_;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_RUNTIME_FAKE_GRAMMAR_H_
