// Runs the rows of batches, on one thread, as calls of the HTTP port that come from no connection.
#ifndef LSSAR_SERVER_BATCH_BATCH_RUNNER_H_
#define LSSAR_SERVER_BATCH_BATCH_RUNNER_H_

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/auth/access_control.h"
#include "server/batch/batch_row.h"
#include "server/batch/batch_store.h"
#include "server/config/options.h"
#include "server/http/http_exchange.h"
#include "server/ops/log.h"

namespace lssar {

// An answered row is a line at the end of the batch's output, or of its errors, which is on the
// disk before the row counts. These lines tell after a restart which rows are done: the others run,
// a line that was not written whole is cut off. So no row is lost, and none is there twice.
//
// One batch of an owner runs at a time, the oldest first. All rows together are one tenant of the
// engine, of the lowest priority. While other calls use it, and for a moment after, one row goes
// on, the others are paused, and none begins.
class BatchRunner {
 public:
  struct Options {
    int max_rows = 1;  // that run at the same time
    StreamOptions stream;
    std::function<absl::Status()> readiness;  // OK: calls are admitted
    // AccessControl::Find.
    std::function<std::optional<Caller>(const std::string& owner)> find_caller;
    std::function<int()> num_other_calls;  // running ones of the engine, without the rows
    // Answers a request whose head has been checked.
    std::function<void(std::shared_ptr<HttpExchange>)> answer;
  };

  // Starts. What `options` uses, `store` and `log` outlive this.
  BatchRunner(Options options, BatchStore* store, const Log* log);
  // Requires  the server admits no calls and has aborted those that run
  ~BatchRunner();
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  // No row begins any more; the running ones have `limit` to end, else they run at the next start.
  // Does not wait.
  // Threads  any
  void Stop(absl::Duration limit);

 private:
  class Signal;
  struct Active;
  struct Running;
  struct Reply;

  void Run();
  // Begins to run batches, and learns which are to end.
  void Refresh();
  Active* Activate(const Batch& batch);
  void CollectAnswers();
  void OnAnswer(Running& running);
  // Begins rows, of each batch in turn.
  void BeginRows();
  // Pauses rows for other requests of the engine, and lets them go on.
  void Yield();
  bool MayBegin() const;
  bool BeginRow(Active& active);
  void Begin(Active& active, BatchRow row, Caller caller);
  // Gives the rows that are left their errors, a part of them at a time.
  void EndBatches();
  // Appends a line to the output, or to the errors.
  void Write(Active& active, const BatchRow& row, const std::string& line, bool is_error);
  void Sync();
  void Fail(Active& active, std::string_view code, std::string message);
  void GiveUp(const Active* active);
  // False: the disk has failed, so the batch has not ended.
  bool Finish(Active& active);

  const Options options_;
  BatchStore& store_;
  const Log& log_;
  const std::shared_ptr<Signal> signal_;
  // The thread's.
  std::list<std::unique_ptr<Active>> active_;
  std::list<Running> running_;
  Clock::time_point refreshed_at_ = {}, others_seen_at_ = {};
  bool is_yielding_ = false;
  std::thread thread_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_BATCH_BATCH_RUNNER_H_
