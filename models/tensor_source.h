// The tensors of a model by this project's names, whatever names the file has.
#ifndef LSSAR_MODELS_TENSOR_SOURCE_H_
#define LSSAR_MODELS_TENSOR_SOURCE_H_

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/config.h"
#include "models/safetensors.h"

namespace lssar {

// Names of GPT-2 ("h.0.attn.c_attn.weight"), behind "transformer." or nothing in the file; or those
// of Llama's, GPT-NeoX's and BLOOM's classes in transformers (ModelConfig::tensor_names).
class TensorSource {
 public:
  // `file` must outlive it.
  TensorSource(const TensorFile& file, const ModelConfig& config);

  // nullptr: no such tensor, or an error (status). A tensor that is put together of several, or
  // reordered, is valid until the next Find.
  const TensorView* Find(const std::string& name);
  // The name in the file; of a tensor that is put together, that of its first part.
  std::string NameInFile(const std::string& name) const;
  // As TensorFile::Release, of the last tensor that Find gave for `name`.
  void Release(const std::string& name);

  // The tensors that Find was never asked for, without masks and tables that are no parameters.
  std::vector<std::string> Unused() const;

  // Errors  INVALID_ARGUMENT: parts of one tensor differ in columns, or in a type that is no float
  const absl::Status& status() const { return status_; }

 private:
  // The tensors of the file that make up `name`, in order of rows.
  std::vector<std::string> PartsOf(const std::string& name) const;
  const TensorView* Join(const std::vector<std::string>& parts);
  const TensorView* SortByKind(const std::string& name);

  const TensorFile& file_;
  const ModelConfig& config_;
  std::string prefix_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::byte> bytes_;  // of view_
  TensorView view_;
  absl::Status status_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TENSOR_SOURCE_H_
