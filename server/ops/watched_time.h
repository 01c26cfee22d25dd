// How long something lasts, for the probes and watches that look at it again and again.
#ifndef LSSAR_SERVER_OPS_WATCHED_TIME_H_
#define LSSAR_SERVER_OPS_WATCHED_TIME_H_

#include <algorithm>

#include "base/clock.h"

namespace lssar {

// Time in which the process itself is stopped or its machine suspended does not count: nobody has
// looked in it, and what is watched could do nothing either.
class WatchedTime {
 public:
  // `max_gap`: at most this much of the time between two looks counts.
  explicit WatchedTime(Clock::duration max_gap, Clock::time_point now = {})
      : max_gap_(max_gap), looked_at_(now) {}

  // The time since the last look that counts.
  Clock::duration Look(Clock::time_point now) {
    const Clock::duration gap = std::min(now - looked_at_, max_gap_);
    looked_at_ = now;
    return gap;
  }

 private:
  const Clock::duration max_gap_;
  Clock::time_point looked_at_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_WATCHED_TIME_H_
