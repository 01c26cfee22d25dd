#include "server/batch/batch_runner.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/clock.h"
#include "base/quote.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/thread_name.h"
#include "server/config/limits.h"
#include "server/net/file_descriptor.h"

namespace lssar {
namespace {

using std::chrono::milliseconds;

// Batches that run at the same time, each of another owner; each has three open files.
constexpr size_t kMaxActive = 16;
// Rows of a batch that are answered without running, or were before, between two looks at the
// others.
constexpr int kMaxLinesAtOnce = 256;
// Between two tries of a batch, whose rows are refused, to run one row more.
constexpr milliseconds kFirstWait{100}, kLastWait{10000};
// How often a batch is looked at that waits for the engine, its key or its end.
constexpr milliseconds kPoll{10};
// After the last request of others: a client that calls again and again is not met by all rows.
constexpr std::chrono::seconds kYieldTime{1};
constexpr std::chrono::seconds kRefreshTime{1};
// Between two tries to write that a batch has ended.
constexpr std::chrono::seconds kEndRetryTime{1};
// A row that ends the server each time must not keep it from starting.
constexpr int kMaxIdleStarts = 5;
constexpr std::chrono::seconds kMaxEndTime{10};
// A file has no more lines: it has come as the body of a request.
constexpr int kMaxLines = limits::kMaxMessageBytes;

// "192.0.2.1", "2001:db8::1" or "unix" as PeerAddress::uri.
std::string PeerOf(const std::string& client) {
  if (client.find(':') != std::string::npos) return StrCat("ipv6:%5B", client, "%5D:0");
  return client.find('.') != std::string::npos ? StrCat("ipv4:", client, ":0") : "unix:";
}

// A file of answered rows. Not copied.
class RowFile {
 public:
  // Opens or makes it, marks the rows that it answers, and cuts off what is no whole line.
  absl::Status Open(const std::string& path, std::vector<bool>* is_answered, int* num_rows);
  int64_t NumCutBytes() const { return num_cut_bytes_; }

  absl::Status Append(std::string_view line) {
    const absl::Status status = WriteAll(file_.Get(), path_, line);
    if (!status.ok()) {
      // What is left of the line is cut at the next start, if not now.
      std::ignore = ftruncate(file_.Get(), num_bytes_);
      return status;
    }
    num_bytes_ += int64_t(line.size());
    is_synced_ = false;
    return absl::OkStatus();
  }
  absl::Status Sync() {
    if (std::exchange(is_synced_, true) || fdatasync(file_.Get()) == 0) return absl::OkStatus();
    return DiskError(path_, errno);
  }

 private:
  std::string path_;
  FileDescriptor file_;
  int64_t num_bytes_ = 0;
  int64_t num_cut_bytes_ = 0;
  bool is_synced_ = true;
};

absl::Status RowFile::Open(const std::string& path, std::vector<bool>* is_answered, int* num_rows) {
  path_ = path;
  file_.Reset(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file_.IsOpen()) return DiskError(path, errno);
  std::string block(size_t{1} << 20, '\0');
  std::string begin;     // of the line
  int64_t at = 0;        // of the block
  bool is_whole = true;  // no line was broken so far
  while (is_whole) {
    const ssize_t num_read = pread(file_.Get(), block.data(), block.size(), at);
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) return DiskError(path, errno);
    if (num_read == 0) break;
    std::string_view rest(block.data(), size_t(num_read));
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      if (begin.size() < kRowIdBytes) begin += part.substr(0, kRowIdBytes - begin.size());
      if (end == rest.npos) break;
      rest.remove_prefix(end + 1);
      const std::optional<int> number = AnsweredRow(begin);
      begin.clear();
      const size_t index = size_t(number.value_or(0));
      is_whole = number && *number <= kMaxLines;
      if (is_whole && index >= is_answered->size()) is_answered->resize(index + 1);
      is_whole = is_whole && !(*is_answered)[index];
      if (!is_whole) break;
      (*is_answered)[index] = true;
      ++*num_rows;
      num_bytes_ = at + num_read - int64_t(rest.size());
    }
    at += num_read;
  }
  struct stat info = {};
  if (fstat(file_.Get(), &info) != 0 || ftruncate(file_.Get(), num_bytes_) != 0) {
    return DiskError(path, errno);
  }
  num_cut_bytes_ = info.st_size - num_bytes_;
  is_synced_ = num_cut_bytes_ == 0;
  return Sync();
}

}  // namespace

// What other threads tell the runner's. Outlives it where the engine still holds a row's exchange.
class BatchRunner::Signal {
 public:
  void Wake() {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
    changed_.notify_all();
  }
  // A batch was added or cancelled.
  void OnChange() {
    has_changes_ = true;
    Wake();
  }
  bool TakeChanges() { return has_changes_.exchange(false); }
  void RunLater(milliseconds delay, std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    timers_.emplace(Clock::now() + delay, std::move(work));
    changed_.notify_all();
  }
  void Stop(Clock::time_point at) {
    const std::lock_guard lock(mutex_);
    stop_at_ = std::min(stop_at_.value_or(at), at);
    is_woken_ = true;
    changed_.notify_all();
  }
  // Set: no row begins, and from then on none runs.
  std::optional<Clock::time_point> StopAt() const {
    const std::lock_guard lock(mutex_);
    return stop_at_;
  }

  // Until Wake, or `longest` has passed. Runs the work that is due.
  void Wait(Clock::duration longest) {
    std::vector<std::function<void()>> due;
    {
      std::unique_lock lock(mutex_);
      Clock::time_point until = Clock::now() + longest;
      if (!timers_.empty()) until = std::min(until, timers_.begin()->first);
      changed_.wait_until(lock, until, [this, until] {
        return is_woken_ || (!timers_.empty() && timers_.begin()->first < until);
      });
      is_woken_ = false;
      const auto end = timers_.upper_bound(Clock::now());
      for (auto timer = timers_.begin(); timer != end; ++timer) {
        due.push_back(std::move(timer->second));
      }
      timers_.erase(timers_.begin(), end);
    }
    for (const auto& work : due) work();
  }

 private:
  std::atomic<bool> has_changes_ = true;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_woken_ = false;
  std::optional<Clock::time_point> stop_at_;
  std::multimap<Clock::time_point, std::function<void()>> timers_;
};

// A batch that runs, or ends.
struct BatchRunner::Active {
  // The next row; nullopt: there is none.
  std::optional<BatchRow> Next();
  bool HasAnswer(const BatchRow& row) const {
    return size_t(row.number) < is_answered.size() && is_answered[size_t(row.number)];
  }
  // No row begins any more: the rest gets errors, or none where the batch has failed.
  bool IsEnding() const { return end != BatchState::kCompleted; }

  Batch batch;
  std::ifstream input;
  int num_lines = 0;              // read
  std::vector<bool> is_answered;  // by the number of the line
  std::set<Sha256::Digest> seen;  // of the custom_ids that were read
  std::deque<BatchRow> refused;   // to begin again
  RowFile output, errors;
  int num_completed = 0, num_failed = 0;
  int num_running = 0;
  bool is_done = false;       // no row is left to be read
  bool has_begun = false;     // a row, since the start
  bool has_progress = false;  // since the start
  // How many rows its key's limits let run, as far as the refused ones tell, and when the next row
  // beyond that may be tried: a row that cannot run costs the others nothing.
  int max_running = std::numeric_limits<int>::max();
  Clock::time_point next_try = {};
  milliseconds wait = kFirstWait;           // after the last try
  bool is_refused = false;                  // a row since then
  BatchState end = BatchState::kCompleted;  // how it is going to end
  std::string error_code, error;            // kFailed
  Clock::time_point next_end = {};          // its end could not be written
};

struct BatchRunner::Running {
  Active* active = nullptr;
  BatchRow row;
  std::string request_id;
  std::shared_ptr<HttpExchange> exchange;
  bool is_try = false;  // one more than the limits are known to allow
};

std::optional<BatchRow> BatchRunner::Active::Next() {
  if (!refused.empty()) {
    BatchRow row = std::move(refused.front());
    refused.pop_front();
    return row;
  }
  std::string line;
  while (std::getline(input, line)) {
    ++num_lines;
    if (IsBlankLine(line)) continue;
    BatchRow row = ParseBatchRow(num_lines, line, batch.endpoint);
    if (!row.custom_id.empty()) {
      Sha256 hash;
      hash.Add(row.custom_id);
      const bool is_new = seen.insert(hash.Finish()).second;
      if (!is_new && row.error.empty()) {
        row.error_code = "duplicate_custom_id";
        row.error = StrCat("line ", row.number, ": an earlier line has the custom_id ",
                           Quote(row.custom_id));
      }
    }
    return row;
  }
  is_done = true;
  return std::nullopt;
}

// The bytes that an exchange has for its connection, taken apart.
struct BatchRunner::Reply {
  explicit Reply(std::string bytes) {
    const size_t end = bytes.find("\r\n\r\n");
    constexpr size_t kStatusAt = std::string_view("HTTP/1.1 ").size();
    if (end == bytes.npos || !absl::SimpleAtoi(bytes.substr(kStatusAt, 3), &status)) {
      status = 0;
      return;
    }
    const std::string_view head = std::string_view(bytes).substr(0, end + 2);
    const auto value = [&head](std::string_view name) {
      const size_t at = head.find(StrCat("\r\n", name, ": "));
      if (at == head.npos) return std::string();
      const size_t begin = at + name.size() + 4;
      return std::string(head.substr(begin, head.find("\r\n", begin) - begin));
    };
    int64_t wait_ms = 0;
    if (absl::SimpleAtoi(value("Retry-After-Ms"), &wait_ms)) retry_after = milliseconds(wait_ms);
    may_retry = value("X-Should-Retry") != "false";
    bytes.erase(0, end + 4);
    body = std::move(bytes);
  }

  int status = 0;  // 0: there is no reply
  milliseconds retry_after{0};
  bool may_retry = true;
  std::string body;
};

BatchRunner::BatchRunner(Options options, BatchStore* store, const Log* log)
    : options_(std::move(options)),
      store_(*store),
      log_(*log),
      signal_(std::make_shared<Signal>()) {
  store_.OnChange([signal = signal_] { signal->OnChange(); });
  thread_ = std::thread([this] { Run(); });
}

BatchRunner::~BatchRunner() {
  store_.OnChange({});
  Stop(absl::ZeroDuration());
  thread_.join();
}

void BatchRunner::Stop(absl::Duration limit) {
  signal_->Stop(Clock::now() + absl::ToChronoMilliseconds(std::min(limit, absl::Hours(24))));
}

void BatchRunner::Run() {
  NameThisThread("batches");
  while (!signal_->StopAt()) {
    if (signal_->TakeChanges() || Clock::now() > refreshed_at_ + kRefreshTime) Refresh();
    CollectAnswers();
    Yield();
    EndBatches();
    BeginRows();
    Sync();
    std::erase_if(active_, [this](const std::unique_ptr<Active>& active) {
      const bool has_ended = active->is_done && active->refused.empty() && active->num_running == 0;
      if (!has_ended || !Finish(*active)) return false;
      signal_->OnChange();  // the owner's next one may begin
      return true;
    });
    signal_->Wait(active_.empty() ? Clock::duration(std::chrono::hours(1)) : kPoll);
  }
  while (!running_.empty() && Clock::now() < *signal_->StopAt() + kMaxEndTime) {
    if (Clock::now() >= *signal_->StopAt()) GiveUp(/*active=*/nullptr);
    signal_->Wait(kPoll);
    CollectAnswers();
    Yield();
    Sync();
  }
  for (const auto& active : active_) {
    store_.SetIdleStarts(active->batch.id, 0).IgnoreError();  // the start was no failure
  }
}

void BatchRunner::Refresh() {
  refreshed_at_ = Clock::now();
  const std::vector<Batch> unfinished = store_.Unfinished();
  std::set<std::string> owners;
  for (const auto& active : active_) owners.insert(active->batch.owner);
  const int64_t now = std::time(nullptr);
  for (const Batch& batch : unfinished) {
    const auto known =
        std::ranges::find(active_, batch.id, [](const auto& active) { return active->batch.id; });
    const bool must_end = batch.state == BatchState::kCancelling || now >= batch.expires_at;
    Active* active = known == active_.end() ? nullptr : known->get();
    if (active == nullptr) {
      if (!must_end && (active_.size() >= kMaxActive || owners.contains(batch.owner))) continue;
      if (active_.size() >= 2 * kMaxActive) continue;
      active = Activate(batch);
      owners.insert(batch.owner);
    }
    if (!must_end || active->IsEnding()) continue;
    active->end =
        batch.state == BatchState::kCancelling ? BatchState::kCancelled : BatchState::kExpired;
    GiveUp(active);
  }
}

BatchRunner::Active* BatchRunner::Activate(const Batch& batch) {
  auto active = std::make_unique<Active>();
  active->batch = batch;
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(active->output.Open(store_.ContentPath(batch.output_file_id),
                                        &active->is_answered, &active->num_completed));
    RETURN_IF_ERROR(active->errors.Open(store_.ContentPath(batch.error_file_id),
                                        &active->is_answered, &active->num_failed));
    RETURN_IF_ERROR(store_.AddOutputBytes(
        batch.id, -active->output.NumCutBytes() - active->errors.NumCutBytes()));
    active->input.open(store_.ContentPath(batch.input_file_id));
    if (!active->input) return absl::InternalError("its input file cannot be read");
    // Last: the answers of a batch that is refused are counted, too.
    if (batch.num_idle_starts >= kMaxIdleStarts) {
      return absl::AbortedError(StrCat("the server has ended ", kMaxIdleStarts,
                                       " times while it ran and no row was answered"));
    }
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    Fail(*active, absl::IsAborted(status) ? "interrupted" : "storage_error",
         std::string(status.message()));
  }
  store_.SetCounts(batch.id, active->num_completed, active->num_failed);
  active_.push_back(std::move(active));
  return active_.back().get();
}

void BatchRunner::CollectAnswers() {
  for (auto at = running_.begin(); at != running_.end();) {
    if (!at->exchange->HasEnded()) {
      ++at;
      continue;
    }
    --at->active->num_running;
    OnAnswer(*at);
    at = running_.erase(at);
  }
}

void BatchRunner::OnAnswer(Running& running) {
  std::string bytes, block;
  while (running.exchange->TakeOutput(&block) == HttpExchange::Output::kTaken) {
    bytes += block;
    block.clear();
  }
  running.exchange->Written(bytes.size());
  Reply reply(std::move(bytes));
  running.exchange->Finish(reply.status == 0 ? absl::CancelledError("the row was given up")
                                             : absl::OkStatus());
  Active& active = *running.active;
  const bool is_busy = reply.status == 503 || (reply.status == 429 && reply.may_retry);
  if (reply.status == 0 || is_busy) {
    // As if it had never run: it begins again, or gets the error of a batch that ends.
    active.refused.push_front(std::move(running.row));
    if (!is_busy) return;
    active.is_refused = true;
    active.max_running = std::min(active.max_running, active.num_running);
    active.next_try =
        std::max(active.next_try, Clock::now() + std::max(active.wait, reply.retry_after));
    return;
  }
  if (running.is_try) {
    active.wait = kFirstWait;
    if (!active.is_refused) active.next_try = {};  // there may be room for more
  }
  const bool is_error = reply.status != 200;
  Write(active, running.row,
        AnsweredLine(running.row, reply.status, running.request_id, std::move(reply.body)),
        is_error);
}

void BatchRunner::BeginRows() {
  if (active_.empty() || !options_.readiness().ok()) return;
  for (size_t num_idle = 0; num_idle < active_.size() && MayBegin();) {
    num_idle = BeginRow(*active_.front()) ? 0 : num_idle + 1;
    active_.splice(active_.end(), active_, active_.begin());
  }
}

void BatchRunner::Yield() {
  const Clock::time_point now = Clock::now();
  if (options_.num_other_calls() > 0) others_seen_at_ = now;
  is_yielding_ = now < others_seen_at_ + kYieldTime;
  for (const Running& running : running_) {
    running.exchange->SetPaused(is_yielding_ && &running != &running_.front());
  }
}

bool BatchRunner::MayBegin() const {
  return running_.empty() || (!is_yielding_ && std::ssize(running_) < options_.max_rows);
}

bool BatchRunner::BeginRow(Active& active) {
  if (active.IsEnding() || (active.is_done && active.refused.empty())) return false;
  const bool is_try = active.num_running >= active.max_running;
  if (is_try && Clock::now() < active.next_try) return false;
  const std::optional<Caller> caller = options_.find_caller(active.batch.owner);
  if (!caller) {
    Fail(active, "invalid_api_key", "the server no longer has the API key that made the batch");
    return false;
  }
  for (int i = 0; i < kMaxLinesAtOnce; ++i) {
    std::optional<BatchRow> row = active.Next();
    if (!row) return false;
    if (active.HasAnswer(*row)) continue;
    if (row->error.empty()) {
      // Here and not in Activate: a server that ends while its model loads has not run the batch.
      if (!active.has_progress && !std::exchange(active.has_begun, true)) {
        const absl::Status counted =
            store_.SetIdleStarts(active.batch.id, active.batch.num_idle_starts + 1);
        if (!counted.ok()) {
          Fail(active, "storage_error", std::string(counted.message()));
          return false;
        }
      }
      if (is_try) {
        active.max_running = active.num_running + 1;
        active.wait = std::exchange(active.is_refused, false) ? std::min(2 * active.wait, kLastWait)
                                                              : kFirstWait;
        active.next_try = Clock::now() + active.wait;
      }
      Begin(active, *std::move(row), *caller);
      running_.back().is_try = is_try;
      return true;
    }
    Write(active, *row, UnansweredLine(*row, row->error_code, row->error), /*is_error=*/true);
    if (active.IsEnding()) return false;
  }
  signal_->Wake();  // there are more
  return false;
}

void BatchRunner::Begin(Active& active, BatchRow row, Caller caller) {
  std::string request_id = StrCat(active.batch.id, "-", row.number);
  HttpRequest request{
      .method = "POST",
      .target = active.batch.endpoint,
      .headers = {{"content-type", "application/json"}, {"x-request-id", request_id}},
      .body = row.body,
      .is_checked = true,
      .peer = PeerOf(active.batch.client),
      .caller = std::move(caller),
      .is_batch_row = true};
  // Weak: a signal's timer must not keep the signal.
  const std::weak_ptr<Signal> weak = signal_;
  HttpExchange::Hooks hooks;
  hooks.wake = [weak] {
    if (const auto signal = weak.lock()) signal->Wake();
  };
  hooks.run_later = [weak](milliseconds delay, std::function<void()> work) {
    if (const auto signal = weak.lock()) signal->RunLater(delay, std::move(work));
  };
  auto exchange =
      std::make_shared<HttpExchange>(std::move(request), options_.stream, std::move(hooks));
  ++active.num_running;
  running_.push_back({.active = &active,
                      .row = std::move(row),
                      .request_id = std::move(request_id),
                      .exchange = exchange});
  options_.answer(std::move(exchange));
}

void BatchRunner::EndBatches() {
  for (const auto& active : active_) {
    if (!active->IsEnding() || active->num_running > 0) continue;
    const bool is_expired = active->end == BatchState::kExpired;
    for (int i = 0; i < kMaxLinesAtOnce && active->end != BatchState::kFailed; ++i) {
      const std::optional<BatchRow> row = active->Next();
      if (!row) break;
      if (active->HasAnswer(*row)) continue;
      Write(*active, *row,
            UnansweredLine(*row, is_expired ? "batch_expired" : "batch_cancelled",
                           is_expired ? "the row was not answered before the completion window "
                                        "ended"
                                      : "the batch was cancelled before the row was answered"),
            /*is_error=*/true);
    }
    if (active->end == BatchState::kFailed) {
      active->refused.clear();
      active->is_done = true;
    }
    if (!active->is_done) signal_->Wake();  // there are more
  }
}

void BatchRunner::Write(Active& active, const BatchRow& row, const std::string& line,
                        bool is_error) {
  if (active.end == BatchState::kFailed) return;
  const absl::Status room = store_.AddOutputBytes(active.batch.id, std::ssize(line));
  if (!room.ok()) {
    Fail(active, "storage_full",
         StrCat("line ", row.number, ": its answer cannot be kept: ", room.message()));
    return;
  }
  const absl::Status written = (is_error ? active.errors : active.output).Append(line);
  if (!written.ok()) {
    store_.AddOutputBytes(active.batch.id, -std::ssize(line)).IgnoreError();
    Fail(active, "storage_error", std::string(written.message()));
    return;
  }
  ++(is_error ? active.num_failed : active.num_completed);
  if (!std::exchange(active.has_progress, true)) {
    store_.SetIdleStarts(active.batch.id, 0).IgnoreError();
  }
}

void BatchRunner::Sync() {
  for (const auto& active : active_) {
    absl::Status status = active->output.Sync();
    status.Update(active->errors.Sync());
    if (!status.ok()) Fail(*active, "storage_error", std::string(status.message()));
    store_.SetCounts(active->batch.id, active->num_completed, active->num_failed);
  }
}

void BatchRunner::Fail(Active& active, std::string_view code, std::string message) {
  if (active.end == BatchState::kFailed) return;
  active.end = BatchState::kFailed;
  active.error_code = code;
  active.error = std::move(message);
  GiveUp(&active);
}

// Ends the running rows of one batch; null: of all.
void BatchRunner::GiveUp(const Active* active) {
  for (const Running& running : running_) {
    if (active != nullptr && running.active != active) continue;
    running.exchange->ClientGone(absl::CancelledError("the batch has ended, or the server stops"));
  }
}

bool BatchRunner::Finish(Active& active) {
  const Clock::time_point now = Clock::now();
  if (now < active.next_end) return false;
  const Batch& batch = active.batch;
  // The file may have lost its end, or a read of it may have failed: getline tells neither.
  const int num_answered = active.num_completed + active.num_failed;
  if (active.input.bad() || num_answered != batch.num_rows) {
    Fail(active, "storage_error",
         StrCat("its input file has changed or cannot be read: ", num_answered, " of its ",
                batch.num_rows, " lines have an answer"));
  }
  const absl::Status status = store_.End(batch.id, active.end, active.error_code, active.error);
  const bool is_first_try = active.next_end == Clock::time_point();
  active.next_end = now + kEndRetryTime;
  if (!status.ok() && !is_first_try) return false;
  LogFields fields = {{"batch", batch.id},
                      {"key", batch.owner},
                      {"endpoint", batch.endpoint},
                      {"completed", active.num_completed},
                      {"failed", active.num_failed}};
  if (!active.error.empty()) fields["message"] = active.error;
  if (!status.ok()) fields["message"] = std::string(status.message());
  if (active.end == BatchState::kFailed || !status.ok()) {
    log_.Error("batch", fields);
  } else {
    log_.Info("batch", fields);
  }
  return status.ok();
}

}  // namespace lssar
