// Sends any number of items in calls of one kind: several calls at once, results in order, bounded
// memory.
#ifndef LSSAR_CLIENTS_CLI_CALL_PIPELINE_H_
#define LSSAR_CLIENTS_CLI_CALL_PIPELINE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/rpc_calls.h"

namespace lssar::cli {

// The server names an item by its index in the request: "items[3].context ...", with `field`
// "items". Names it by its line instead, or returns `status` if the item has none.
// `line_numbers`: of the request's items, from 1; 0: not from a file.
absl::Status NameLine(const absl::Status& status, absl::string_view field,
                      const std::vector<int64_t>& line_numbers);

// Groups items into requests and keeps `num_calls` calls in flight. Holds at most 2 * `num_calls`
// requests and their results. Repeats a call that is refused or whose
// server ended.
template <typename Request, typename Result>
class CallPipeline {
 public:
  struct Functions {
    // Adds items to an empty request until it is full, and the line of each to `line_numbers`.
    // Returns false at the end of the items. After an error the items before it are still sent.
    // Threads  that of Run
    std::function<absl::StatusOr<bool>(Request*, std::vector<int64_t>* line_numbers)> fill;
    // Threads  several at once
    std::function<absl::StatusOr<Result>(const Request&)> call;
    // Takes the results in the order of the items.
    // Threads  that of Run
    std::function<absl::Status(const Request&, const Result&)> on_result;
  };

  // `field`: the request's field that has the items.
  CallPipeline(int num_calls, absl::string_view field, Functions functions, Interrupt* interrupt)
      : num_calls_(num_calls),
        field_(field),
        functions_(std::move(functions)),
        interrupt_(interrupt) {}

  // Errors  the first of the functions in the order of the items, after the results before it are
  //         handed over; CANCELLED: interrupted
  absl::Status Run() {
    std::vector<std::thread> workers;
    for (int i = 0; i < num_calls_; ++i) workers.emplace_back([this] { Work(); });
    absl::Status status = FillAndHandOver();
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
  struct Batch {
    Request request;
    std::vector<int64_t> line_numbers;             // of its items
    std::optional<absl::StatusOr<Result>> result;  // set by a worker
  };

  absl::Status FillAndHandOver() {
    bool is_at_end = false;
    absl::Status fill_error;  // reported after the results of the items before it
    while (true) {
      while (!is_at_end && batches_.size() < 2 * size_t(num_calls_)) {
        auto batch = std::make_shared<Batch>();
        const absl::StatusOr<bool> has_more =
            functions_.fill(&batch->request, &batch->line_numbers);
        fill_error = has_more.status();
        is_at_end = !has_more.ok() || !*has_more;
        if (batch->line_numbers.empty()) break;
        batches_.push_back(batch);
        {
          const std::lock_guard lock(mutex_);
          queue_.push_back(std::move(batch));
        }
        changed_.notify_all();
      }
      if (batches_.empty()) return fill_error;
      const std::shared_ptr<Batch> batch = std::move(batches_.front());
      batches_.pop_front();
      WaitFor(*batch);
      if (!batch->result->ok()) {
        return NameLine(batch->result->status(), field_, batch->line_numbers);
      }
      const absl::Status status = functions_.on_result(batch->request, **batch->result);
      if (!status.ok()) return status;
    }
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
      absl::StatusOr<Result> result;
      absl::Status status = RetryRefused(interrupt_, [&] {
        result = functions_.call(batch->request);
        return result.status();
      });
      if (!status.ok()) result = std::move(status);
      {
        const std::lock_guard lock(mutex_);
        batch->result = std::move(result);
      }
      changed_.notify_all();
    }
  }

  const int num_calls_;
  const absl::string_view field_;
  const Functions functions_;
  Interrupt* const interrupt_;
  std::deque<std::shared_ptr<Batch>> batches_;  // filled and not handed over; Run's thread

  std::mutex mutex_;  // guards the members below, and the result of each batch
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Batch>> queue_;  // not taken by a worker
  bool is_closed_ = false;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_CALL_PIPELINE_H_
