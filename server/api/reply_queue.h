// The replies of a call that its client has not read yet, for both ports: in order and bounded, and
// with a deadline for a client that does not read.
#ifndef LSSAR_SERVER_API_REPLY_QUEUE_H_
#define LSSAR_SERVER_API_REPLY_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/str_cat.h"
#include "server/config/options.h"

namespace lssar {

// How long a client may take to read `num_bytes`: one timeout for each buffer of them. A client
// that trickles would hold a large reply, and its place in the server, without end.
inline Clock::duration ReadTime(int64_t num_bytes, const StreamOptions& options) {
  return absl::ToChronoNanoseconds(options.client_timeout) * (num_bytes / options.buffer_bytes + 1);
}

// Backpressure: HasSpace turns false when more than StreamOptions::buffer_bytes wait or are being
// written, and true again when half of that has been written. A producer that stops while it is
// false adds at most one engine step's replies.
//
// Slow clients: the client is waited for while HasSpace is false, and from End until all has been
// written. It must then read something in each client_timeout, and within ReadTime of what waits:
// enough of it that HasSpace is true again, or all that is left at the end, if that is more than
// buffer_bytes.
//
// Threads  HasSpace: any; all else: under a lock of the owner
template <typename Reply>
class ReplyQueue {
 public:
  using Time = Clock::time_point;
  struct Entry {
    Reply reply;
    int64_t num_bytes = 0;  // the sum over merged replies
  };

  // `now`: the clock; tests have their own.
  explicit ReplyQueue(const StreamOptions& options, Time (*now)() = Clock::now)
      : options_(options), timeout_(absl::ToChronoNanoseconds(options.client_timeout)), now_(now) {}

  // The producer's part.

  bool HasSpace() const { return has_space_.load(std::memory_order_relaxed); }

  // Appends a reply, or has `merge(entries, reply)` merge it into the entry that it returns; null:
  // none fits. Ignored after End, Abort and Close.
  template <typename Merge>
  void Push(Reply reply, int64_t num_bytes, const Merge& merge) {
    if (ended_ || is_closed_ || !aborted_.ok()) return;
    if (Entry* const into = merge(entries_, reply)) {
      into->num_bytes += num_bytes;
    } else {
      entries_.push_back({.reply = std::move(reply), .num_bytes = num_bytes});
    }
    num_bytes_ += num_bytes;
    if (num_bytes_ > options_.buffer_bytes && HasSpace()) {
      has_space_ = false;
      waits_since_ = now_();
      rest_due_ = waits_since_ + ReadTime(num_bytes_, options_);
    }
  }

  // No reply follows. False: it had ended before; the first status counts, and that of Abort before
  // any other.
  bool End(absl::Status status) {
    if (ended_) return false;
    ended_ = aborted_.ok() ? std::move(status) : aborted_;
    if (num_bytes_ == 0) return true;
    waits_since_ = now_();
    if (num_bytes_ > options_.buffer_bytes) {
      rest_due_ = std::min(rest_due_, waits_since_ + ReadTime(num_bytes_, options_));
    }
    return true;
  }

  // The writer's part.

  // The next reply to write; Written follows. Nullopt: none waits.
  std::optional<Entry> Take() {
    if (entries_.empty()) return std::nullopt;
    std::optional<Entry> next = std::move(entries_.front());
    entries_.pop_front();
    return next;
  }
  // That much of what was taken is written. True: HasSpace has become true.
  bool Written(int64_t num_bytes) {
    num_bytes_ -= num_bytes;
    written_at_ = now_();
    if (HasSpace() || num_bytes_ > options_.buffer_bytes / 2) return false;
    has_space_ = true;
    if (!ended_) rest_due_ = Time::max();
    return true;
  }

  // The status of End; nullopt: more may follow.
  const std::optional<absl::Status>& Ended() const { return ended_; }
  // Bytes that wait, or were taken but are not written.
  int64_t NumBytes() const { return num_bytes_; }

  // Nobody reads any more: drops what waits.
  void Close() {
    is_closed_ = true;
    Drop();
  }
  bool IsClosed() const { return is_closed_; }

  // When the client must have read something; nullopt: it is not waited for.
  std::optional<Time> Deadline() const {
    const bool is_waited_for = ended_ ? num_bytes_ > 0 : !HasSpace();
    if (!is_waited_for || timeout_ == Clock::duration::zero()) return std::nullopt;
    return std::min(std::max(written_at_, waits_since_) + timeout_, rest_due_);
  }
  // ABORTED: the deadline has passed.
  absl::Status CheckClient() const {
    const std::optional<Time> due = Deadline();
    if (!due || now_() < *due) return absl::OkStatus();
    return absl::AbortedError(
        StrCat("the client has read ", now_() >= rest_due_ ? "too slowly" : "nothing", " for ",
               absl::FormatDuration(options_.client_timeout), " (--slow-client-timeout) while ",
               num_bytes_, " bytes of replies were buffered"));
  }
  // Drops what waits; `status` is the end. The client has `time` to read what is being written.
  void Abort(const absl::Status& status, Clock::duration time) {
    aborted_ = status;
    Drop();
    if (ended_ && ended_->ok()) ended_ = aborted_;
    timeout_ = std::min(timeout_, time);
    waits_since_ = now_();
    rest_due_ = Time::max();
  }
  bool IsAborted() const { return !aborted_.ok(); }

 private:
  void Drop() {
    for (const Entry& entry : entries_) num_bytes_ -= entry.num_bytes;
    entries_.clear();
  }

  const StreamOptions options_;
  Clock::duration timeout_;
  Time (*const now_)();

  std::atomic<bool> has_space_ = true;
  std::deque<Entry> entries_;
  int64_t num_bytes_ = 0;
  std::optional<absl::Status> ended_;
  absl::Status aborted_;
  bool is_closed_ = false;
  Time written_at_ = {}, waits_since_ = {};
  Time rest_due_ = Time::max();
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_REPLY_QUEUE_H_
