#include "server/api/memory_budget.h"

#include "base/check.h"
#include "base/error_details.h"
#include "base/str_cat.h"

namespace lssar {

absl::Status MemoryBudget::Take(int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  if (num_bytes_ > 0 && num_bytes_ + num_bytes > max_bytes_) {
    return LimitError(
        error_reason::kMemory,
        StrCat("the server holds ", num_bytes_, " bytes of ", what_, "; with this one of ",
               num_bytes, " bytes they exceed the limit of ", max_bytes_, "; retry later"));
  }
  num_bytes_ += num_bytes;
  return absl::OkStatus();
}

void MemoryBudget::Return(int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  num_bytes_ -= num_bytes;
  LSSAR_CHECK(num_bytes_ >= 0);
}

}  // namespace lssar
