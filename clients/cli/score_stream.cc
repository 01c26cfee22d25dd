#include "clients/cli/score_stream.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

// A batch ends at the first of these.
constexpr int kItemsPerBatch = 64;
constexpr size_t kBytesPerBatch = 256 << 10;

struct Batch {
  v1::ScoreRequest request;
  std::vector<int64_t> line_numbers;                  // of its items
  std::optional<absl::StatusOr<ScoredItems>> result;  // set by a worker
};

// The server names an item by its place in the request, "items[3].context ...": replaced by the
// line of the file.
absl::Status NameLine(const Batch& batch, const absl::Status& status) {
  const std::string message(status.message());
  constexpr absl::string_view kItem = "items[";
  const size_t begin = message.find("items[");
  if (begin == std::string::npos) return status;
  const size_t end = message.find(']', begin);
  int item = -1;
  if (end == std::string::npos ||
      !absl::SimpleAtoi(message.substr(begin + kItem.size(), end - begin - kItem.size()), &item) ||
      item < 0 || item >= int(batch.line_numbers.size()) || batch.line_numbers[size_t(item)] == 0) {
    return status;
  }
  std::string rest = message.substr(end + 1);
  if (rest.starts_with('.')) rest = rest.substr(1);
  return absl::Status(status.code(), StrCat("line ", batch.line_numbers[size_t(item)], ": ",
                                            message.substr(0, begin), rest));
}

class ScorePipeline {
 public:
  ScorePipeline(v1::Inference::StubInterface* stub, const ScoreStreamOptions& options,
                Interrupt* interrupt)
      : stub_(stub), options_(options), interrupt_(interrupt) {}

  absl::Status Run(const NextScoreLine& next, const OnScoredItem& on_scored) {
    std::vector<std::thread> workers;
    for (int i = 0; i < options_.max_concurrency; ++i) workers.emplace_back([this] { Work(); });
    absl::Status status = ReadAndHandOver(next, on_scored);
    if (interrupt_->Fired()) status = absl::CancelledError("stopped by Ctrl-C");
    if (!status.ok()) interrupt_->Fire();  // nothing will read the results of the other calls
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers) worker.join();
    return status;
  }

 private:
  absl::Status ReadAndHandOver(const NextScoreLine& next, const OnScoredItem& on_scored) {
    const size_t max_batches = 2 * size_t(options_.max_concurrency);
    bool is_at_end = false;
    absl::Status read_error;  // reported after the results of the lines before it
    while (true) {
      while (!is_at_end && batches_.size() < max_batches) {
        auto batch = std::make_shared<Batch>();
        read_error = FillBatch(next, batch.get(), &is_at_end);
        if (!read_error.ok()) is_at_end = true;
        if (batch->line_numbers.empty()) break;
        batches_.push_back(batch);
        {
          const std::lock_guard lock(mutex_);
          queue_.push_back(std::move(batch));
        }
        changed_.notify_all();
      }
      if (batches_.empty()) return read_error;
      const std::shared_ptr<Batch> batch = std::move(batches_.front());
      batches_.pop_front();
      WaitFor(*batch);
      if (!batch->result->ok()) return NameLine(*batch, batch->result->status());
      for (int i = 0; i < batch->request.items_size(); ++i) {
        on_scored(batch->request.items(i), (**batch->result)[size_t(i)]);
      }
    }
  }

  absl::Status FillBatch(const NextScoreLine& next, Batch* batch, bool* is_at_end) const {
    FillScheduling(options_.scheduling, &batch->request);
    batch->request.set_per_token(options_.per_token);
    if (options_.per_token) batch->request.set_top_logprobs(1);
    size_t num_bytes = 0;
    while (batch->request.items_size() < kItemsPerBatch && num_bytes < kBytesPerBatch) {
      ASSIGN_OR_RETURN(std::optional<ScoreLine> line, next());
      if (!line.has_value()) {
        *is_at_end = true;
        break;
      }
      num_bytes += line->item.ByteSizeLong();
      batch->line_numbers.push_back(line->line_number);
      *batch->request.add_items() = std::move(line->item);
    }
    return absl::OkStatus();
  }

  void WaitFor(const Batch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batch.result.has_value(); });
  }

  void Work() {
    while (true) {
      std::shared_ptr<Batch> batch;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_closed_ || !queue_.empty(); });
        if (is_closed_) return;
        batch = std::move(queue_.front());
        queue_.pop_front();
      }
      absl::StatusOr<ScoredItems> scored;
      RetryWhileFull(interrupt_, [&] {
        scored = RunScore(stub_, batch->request, interrupt_, [](const v1::ContinuationScore&) {});
        return scored.status();
      }).IgnoreError();  // it is in `scored`
      {
        const std::lock_guard lock(mutex_);
        batch->result = std::move(scored);
      }
      changed_.notify_all();
    }
  }

  v1::Inference::StubInterface* const stub_;
  const ScoreStreamOptions& options_;
  Interrupt* const interrupt_;
  std::deque<std::shared_ptr<Batch>> batches_;  // read and not handed over; the caller's thread

  std::mutex mutex_;  // guards what follows, and the result of each batch
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Batch>> queue_;  // not taken by a worker
  bool is_closed_ = false;
};

}  // namespace

absl::Status RunScoreStream(v1::Inference::StubInterface* stub, const ScoreStreamOptions& options,
                            Interrupt* interrupt, const NextScoreLine& next,
                            const OnScoredItem& on_scored) {
  return ScorePipeline(stub, options, interrupt).Run(next, on_scored);
}

}  // namespace lssar::cli
