// Passkey-retrieval documents (Mohtashami & Jaggi 2023), word for word those of
// models/training/passkey.py.
#ifndef LSSAR_CLIENTS_CLI_PASSKEY_DOCUMENT_H_
#define LSSAR_CLIENTS_CLI_PASSKEY_DOCUMENT_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "clients/cli/python_random.h"

namespace lssar::cli {

// One unit of irrelevant text.
inline constexpr absl::string_view kPasskeyFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

struct PasskeyDocument {
  std::string text;  // ends by asking for the key
  std::string key;   // 1 to 50000
  double depth = 0;  // [0, 1]: where the key was put, as a share of the filler before it
};

// Draws the key, then (`depth` unset) the depth.
// Requires  num_filler >= 0, depth in [0, 1]
PasskeyDocument MakePasskeyDocument(int num_filler, std::optional<double> depth, PythonRandom* rng);

// Filler units of a document of about `length` tokens: the frame around them takes about 110.
int NumPasskeyFiller(int length, int filler_tokens);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PASSKEY_DOCUMENT_H_
