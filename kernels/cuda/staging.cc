#include "kernels/cuda/staging.h"

#include <cstring>

namespace lssar {

int Staging::CopyIn(void* to, const void* from, size_t num_bytes) {
  if (num_bytes > kNumBytes - num_used_ || !memory_.Reserve(kNumBytes).ok()) {
    return driver_.CopyIn(to, from, num_bytes);
  }
  unsigned char* const staged = static_cast<unsigned char*>(memory_.Address()) + num_used_;
  std::memcpy(staged, from, num_bytes);
  num_used_ += (num_bytes + 63) / 64 * 64;
  return driver_.CopyInAsync(to, staged, num_bytes);
}

}  // namespace lssar
