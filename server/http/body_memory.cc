#include "server/http/body_memory.h"

#include "base/str_cat.h"

namespace lssar {

absl::Status BodyMemory::Add(const std::string& address, int64_t change) {
  if (change == 0) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  total_ += change;
  const auto found = by_address_.try_emplace(address).first;
  const int64_t num_bytes = found->second += change;
  if (num_bytes == 0) by_address_.erase(found);
  if (change < 0) return absl::OkStatus();
  if (max_per_address_ > 0 && num_bytes > max_per_address_) {
    return absl::ResourceExhaustedError(
        StrCat("the requests of this address that are being read have ", num_bytes,
               " bytes; they may have ", max_per_address_, "; retry later"));
  }
  if (total_ > max_total_) {
    return absl::UnavailableError(StrCat("the requests that are being read have ", total_,
                                         " bytes; they may have ", max_total_, "; retry later"));
  }
  return absl::OkStatus();
}

}  // namespace lssar
