// The ids that end a text.
#ifndef LSSAR_RUNTIME_ENDING_IDS_H_
#define LSSAR_RUNTIME_ENDING_IDS_H_

#include <cstdint>
#include <vector>

#include "models/config.h"
#include "runtime/request.h"

namespace lssar {

// The stop ids, and EOS unless it is ignored.
inline std::vector<int32_t> EndingIds(const GenerateParams& params, const ModelConfig& config) {
  std::vector<int32_t> ids = params.stop_ids;
  if (params.ignore_eos) return ids;
  const std::vector<int32_t> eos_ids = config.EosIds();
  ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  return ids;
}

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ENDING_IDS_H_
