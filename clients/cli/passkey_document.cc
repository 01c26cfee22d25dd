#include "clients/cli/passkey_document.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

constexpr absl::string_view kHead =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.";
constexpr absl::string_view kAsk = "What is the pass key? The pass key is";
constexpr int kMaxKey = 50000;
constexpr int kFrameTokens = 110;

}  // namespace

PasskeyDocument MakePasskeyDocument(int num_filler, std::optional<double> depth,
                                    PythonRandom* rng) {
  LSSAR_CHECK(num_filler >= 0);
  PasskeyDocument document;
  document.key = StrCat(rng->RandInt(1, kMaxKey));
  document.depth = depth.has_value() ? *depth : rng->Random();
  // Python's round: halves go to the even neighbour, as nearbyint does in the default mode.
  const auto key_idx = static_cast<int>(std::nearbyint(document.depth * num_filler));
  LSSAR_CHECK(key_idx >= 0 && key_idx <= num_filler);
  document.text = std::string(kHead);
  for (int i = 0; i <= num_filler; ++i) {
    if (i == key_idx) {
      absl::StrAppend(&document.text, " The pass key is ", document.key, ". Remember it. ",
                      document.key, " is the pass key.");
    }
    if (i < num_filler) absl::StrAppend(&document.text, " ", kPasskeyFiller);
  }
  absl::StrAppend(&document.text, " ", kAsk);
  return document;
}

int NumPasskeyFiller(int length, int filler_tokens) {
  LSSAR_CHECK(filler_tokens > 0);
  return std::max(0, (length - kFrameTokens) / filler_tokens);
}

}  // namespace lssar::cli
