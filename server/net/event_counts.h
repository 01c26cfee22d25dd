// Log lines for events that an attacker can cause at any rate.
#ifndef LSSAR_SERVER_NET_EVENT_COUNTS_H_
#define LSSAR_SERVER_NET_EVENT_COUNTS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "server/ops/log.h"

namespace lssar {

// Counts events by reason. Writes at most one line in ten seconds, with the counts since the line
// before and the client's address of the last event.
template <size_t N>
class EventCounts {
 public:
  EventCounts(std::string_view event, std::string port, std::array<std::string_view, N> reasons)
      : event_(event), port_(std::move(port)), reasons_(reasons) {}

  void Add(size_t reason, const std::string& address, const Log* log) {
    ++counts_.at(reason);
    const Clock::time_point now = Clock::now();
    if (log == nullptr || now < next_line_at_) return;
    next_line_at_ = now + std::chrono::seconds(10);
    LogFields fields = {{"port", port_}, {"address", address}};
    for (size_t i = 0; i < N; ++i) {
      if (counts_.at(i) > 0) fields[std::string(reasons_.at(i))] = counts_.at(i);
    }
    counts_ = {};
    log->Warning(event_, fields);
  }

 private:
  const std::string_view event_;
  const std::string port_;
  const std::array<std::string_view, N> reasons_;
  std::array<int64_t, N> counts_ = {};
  Clock::time_point next_line_at_ = {};
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_EVENT_COUNTS_H_
