// Bounds that tenants share: each may have an equal part, and more while there is space.
#ifndef LSSAR_BASE_FAIR_SHARE_H_
#define LSSAR_BASE_FAIR_SHARE_H_

#include <cstdint>

namespace lssar {

// Whether a tenant that has `own` of the `total` of `num_tenants` may take `more`: up to `limit` in
// all, and beyond it up to its equal part of it.
inline bool MayTake(int64_t more, int64_t own, int64_t total, int64_t limit, int64_t num_tenants) {
  return total + more <= limit || own + more <= limit / num_tenants;
}

}  // namespace lssar

#endif  // LSSAR_BASE_FAIR_SHARE_H_
