// Checkpoints for tests: scratch directories, safetensors files made to order, models run row by
// row.
#ifndef LSSAR_TESTS_MODELS_FIXTURE_H_
#define LSSAR_TESTS_MODELS_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "models/checkpoint.h"

namespace lssar::testing {

inline constexpr std::string_view kShippedModel = "models/zoo/lssar-6m";
inline constexpr std::string_view kSmallModel = "tests/golden/gpt_lssar";

// A directory that goes with the object.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& Path() const { return path_; }
  std::string Write(const std::string& name, std::string_view bytes) const;  // its path
  // Every file of `directory`, by copy.
  void CopyFrom(std::string_view directory) const;

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);

struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A well-formed file of these tensors, in order.
std::string MakeSafetensors(const std::vector<RawTensor>& tensors);
// A file with this header text, its length in front, and `num_bytes` zeros behind.
std::string MakeRawSafetensors(std::string_view header, size_t num_bytes);
std::string FloatBytes(const std::vector<float>& values);
// The tensors of a file, in name order.
std::vector<RawTensor> ReadTensors(const std::string& path);

// Ends the test program when there is no such backend.
std::unique_ptr<Backend> NewBackend(const std::string& name, int num_threads = 2);

// The message of a status that must not be OK.
std::string MessageOf(const absl::Status& status);

}  // namespace lssar::testing

#endif  // LSSAR_TESTS_MODELS_FIXTURE_H_
