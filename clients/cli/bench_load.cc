#include "clients/cli/bench_load.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "clients/cli/bench_workload.h"
#include "clients/cli/prefix_key.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/service.h"

namespace lssar::cli {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// Interval of checks of the interrupt and of calls of on_progress.
constexpr std::chrono::milliseconds kPause{100};
// If a refusal carries no RetryInfo.
constexpr std::chrono::milliseconds kRefusedPause{50};

// Receives the events of calls.
// Threads  any
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void OnTokens(int num_tokens) = 0;
  virtual void OnEnded(BenchRecord record, const grpc::Status& status) = 0;
};

// One call. Owns itself until gRPC has finished it.
class BenchCall final : public grpc::ClientReadReactor<v1::GenerateReply>,
                        public std::enable_shared_from_this<BenchCall> {
 public:
  BenchCall(steady_clock::time_point begin, BenchRecord record, CallObserver* observer)
      : begin_(begin), record_(std::move(record)), observer_(observer) {}

  void Start(Service* stub, v1::GenerateRequest request, std::optional<microseconds> deadline) {
    self_ = shared_from_this();
    request_ = std::move(request);
    if (deadline) context_.set_deadline(std::chrono::system_clock::now() + *deadline);
    record_.sent_us = NowUs();
    context_.AddMetadata(kPrefixHeader, PrefixKey(request_));
    (*stub)->async()->Generate(&context_, &request_, this);
    StartRead(&reply_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

 private:
  int64_t NowUs() const { return MicrosSince(begin_); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (reply_.has_started()) {
      record_.num_prompt_tokens = reply_.started().num_prompt_tokens();
      record_.num_cached_tokens = reply_.started().num_cached_tokens();
    } else if (reply_.has_delta() && reply_.delta().tokens_size() > 0) {
      NoteTokens(reply_.delta().tokens_size());
    }
    StartRead(&reply_);
  }

  void NoteTokens(int num_tokens) {
    const int64_t now_us = NowUs();
    if (record_.first_token_us < 0) {
      record_.first_token_us = now_us;
      record_.num_first_tokens = num_tokens;
    } else {
      record_.gaps.push_back({.us = now_us - record_.last_token_us, .num_tokens = num_tokens});
    }
    record_.last_token_us = now_us;
    record_.num_output_tokens += num_tokens;
    observer_->OnTokens(num_tokens);
  }

  void OnDone(const grpc::Status& status) override {
    BenchRecord record = std::move(record_);
    record.ended_us = NowUs();
    record.code = static_cast<absl::StatusCode>(status.error_code());
    CallObserver* const observer = observer_;
    // Releases the context before the observer learns of the end. The context holds the channel;
    // if it were the last owner, this thread of gRPC would wait for itself.
    self_.reset();
    observer->OnEnded(std::move(record), status);
  }

  const steady_clock::time_point begin_;
  BenchRecord record_;
  CallObserver* const observer_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateReply reply_;
  std::shared_ptr<BenchCall> self_;
};

class LoadRun final : public CallObserver {
 public:
  LoadRun(const LoadPlan& plan, Interrupt* interrupt,
          const std::function<void(const LoadProgress&)>& on_progress)
      : plan_(plan), interrupt_(interrupt), on_progress_(on_progress) {
    if (plan.rate) arrivals_.emplace(*plan.rate, plan.seed);
  }

  absl::StatusOr<std::vector<BenchRecord>> Run(Service* stub, const BenchWorkload& workload) {
    for (int64_t idx = 0; !interrupt_->Fired(); ++idx) {
      v1::GenerateRequest request = workload.Request(idx);
      request.set_cache_salt(plan_.cache_salt);
      const std::optional<int64_t> due_us = arrivals_ ? WaitForArrival() : WaitForSlot();
      if (!due_us) break;
      Start(stub, std::move(request), *due_us);
    }
    WaitUntil(steady_clock::time_point::max(), [this] { return num_running_ == 0; });
    if (interrupt_->Fired()) {
      CancelAll();
      return absl::CancelledError("stopped by Ctrl-C");
    }
    return std::move(records_);
  }

  void OnTokens(int num_tokens) override { num_tokens_ += num_tokens; }

  void OnEnded(BenchRecord record, const grpc::Status& status) override {
    // Holds the lock to the end: this object may be destroyed when no call runs.
    const std::lock_guard lock(mutex_);
    const bool is_refused = record.code == absl::StatusCode::kResourceExhausted ||
                            record.code == absl::StatusCode::kUnavailable;
    if (is_refused && plan_.concurrency) {
      blocked_until_.insert(steady_clock::now() + RetryDelayOf(status).value_or(kRefusedPause));
    }
    if (!record.is_warmup) ++num_counted_ended_;
    if (record.code != absl::StatusCode::kOk) ++num_failed_;
    records_.push_back(std::move(record));
    --num_running_;
    changed_.notify_all();
  }

 private:
  int64_t NowUs() const { return MicrosSince(begin_); }

  bool IsOver(int64_t due_us) const {
    if (plan_.num_requests) return num_counted_sent_ >= *plan_.num_requests;
    return due_us >= (plan_.warmup + plan_.duration).count();
  }

  // Waits for the next arrival and returns its time; nullopt: the load is over.
  std::optional<int64_t> WaitForArrival() {
    const int64_t due_us = arrivals_->NextUs();
    if (IsOver(due_us)) return std::nullopt;
    WaitUntil(begin_ + microseconds(due_us), [] { return false; });
    if (interrupt_->Fired()) return std::nullopt;
    return due_us;
  }

  // Waits until fewer than `concurrency` requests are in flight; nullopt: the load is over.
  std::optional<int64_t> WaitForSlot() {
    const auto has_slot = [this] {
      const auto now = steady_clock::now();
      blocked_until_.erase(blocked_until_.begin(), blocked_until_.upper_bound(now));
      return num_running_ + int64_t(blocked_until_.size()) < *plan_.concurrency || IsOver(NowUs());
    };
    WaitUntil(steady_clock::time_point::max(), has_slot);
    const int64_t now_us = NowUs();
    if (interrupt_->Fired() || IsOver(now_us)) return std::nullopt;
    return now_us;
  }

  void Start(Service* stub, v1::GenerateRequest request, int64_t due_us) {
    BenchRecord record;
    record.due_us = due_us;
    record.is_warmup = due_us < plan_.warmup.count();
    if (!record.is_warmup) ++num_counted_sent_;
    const auto call = std::make_shared<BenchCall>(begin_, std::move(record), this);
    {
      const std::lock_guard lock(mutex_);
      ++num_running_;
    }
    std::erase_if(calls_, [](const auto& ended) { return ended.expired(); });
    calls_.push_back(call);
    call->Start(stub, std::move(request), plan_.deadline);
  }

  // Returns at `time`, on `condition` (called under the lock) or on the interrupt.
  template <typename Condition>
  void WaitUntil(steady_clock::time_point time, const Condition& condition) {
    std::unique_lock lock(mutex_);
    while (!interrupt_->Fired() && !condition()) {
      const auto now = steady_clock::now();
      if (now >= time) return;
      changed_.wait_until(lock, std::min(time, now + NextPause(now)));
      if (steady_clock::now() - shown_at_ >= kPause) ShowProgress();
    }
  }

  // Requires  mutex_ is held
  steady_clock::duration NextPause(steady_clock::time_point now) const {
    if (blocked_until_.empty()) return kPause;
    const steady_clock::duration until_free = *blocked_until_.begin() - now;
    return std::clamp<steady_clock::duration>(until_free, std::chrono::milliseconds(1), kPause);
  }

  // Requires  mutex_ is held
  void ShowProgress() {
    shown_at_ = steady_clock::now();
    const double share = plan_.num_requests
                             ? double(num_counted_ended_) / double(*plan_.num_requests)
                             : double(NowUs()) / double((plan_.warmup + plan_.duration).count());
    on_progress_({.share = std::min(share, 1.0),
                  .num_ended = int64_t(records_.size()),
                  .num_failed = num_failed_,
                  .num_running = num_running_,
                  .num_tokens = num_tokens_});
  }

  void CancelAll() {
    for (const auto& weak : calls_) {
      if (const std::shared_ptr<BenchCall> call = weak.lock()) call->Cancel();
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_running_ == 0; });
  }

  const LoadPlan& plan_;
  Interrupt* const interrupt_;
  const std::function<void(const LoadProgress&)>& on_progress_;
  const steady_clock::time_point begin_ = steady_clock::now();

  // Used by the thread that runs the load only.
  std::optional<PoissonArrivals> arrivals_;
  std::vector<std::weak_ptr<BenchCall>> calls_;
  int64_t num_counted_sent_ = 0;
  steady_clock::time_point shown_at_ = begin_;

  std::atomic<int64_t> num_tokens_ = 0;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int64_t num_running_ = 0;
  int64_t num_counted_ended_ = 0;
  int64_t num_failed_ = 0;
  std::multiset<steady_clock::time_point> blocked_until_;  // slots of refused requests
  std::vector<BenchRecord> records_;
};

}  // namespace

absl::StatusOr<std::vector<BenchRecord>> RunLoad(
    Service* stub, const BenchWorkload& workload, const LoadPlan& plan, Interrupt* interrupt,
    const std::function<void(const LoadProgress&)>& on_progress) {
  return LoadRun(plan, interrupt, on_progress).Run(stub, workload);
}

}  // namespace lssar::cli
