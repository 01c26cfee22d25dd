// A tokenizer that is as slow as a test needs, on a machine of any speed.
#ifndef LSSAR_TESTS_SERVER_HELD_TOKENIZER_H_
#define LSSAR_TESTS_SERVER_HELD_TOKENIZER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "models/text/tokenizer.h"

namespace lssar {

// Which texts wait. Tests change it while a server runs.
struct TextHold {
  std::atomic<bool> is_held = false;
  std::atomic<int> num_held = 0;  // texts that wait now
};

// `tokenizer`, but while `hold` is held a text of more than kLongBytes waits in Encode, as if its
// tokenization took that long, until it is told to stop.
class HeldTokenizer final : public Tokenizer {
 public:
  static constexpr size_t kLongBytes = size_t{64} << 10;

  // `hold` outlives the object.
  HeldTokenizer(std::unique_ptr<Tokenizer> tokenizer, TextHold* hold)
      : tokenizer_(std::move(tokenizer)), hold_(hold) {}

  using Tokenizer::Encode;
  absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, absl::FunctionRef<bool()> should_stop) const override {
    if (text.size() > kLongBytes) {
      ++hold_->num_held;
      while (hold_->is_held && !should_stop()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      --hold_->num_held;
    }
    return tokenizer_->Encode(text, should_stop);
  }
  int VocabSize() const override { return tokenizer_->VocabSize(); }
  StableSplit SplitStable(std::string_view text, size_t from) const override {
    return tokenizer_->SplitStable(text, from);
  }
  int MaxPieceBytes() const override { return tokenizer_->MaxPieceBytes(); }
  std::string_view PieceBytes(int32_t id) const override { return tokenizer_->PieceBytes(id); }
  bool AddsDummyPrefix() const override { return tokenizer_->AddsDummyPrefix(); }
  std::string_view Hash() const override { return tokenizer_->Hash(); }

 private:
  const std::unique_ptr<Tokenizer> tokenizer_;
  TextHold* const hold_;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_HELD_TOKENIZER_H_
