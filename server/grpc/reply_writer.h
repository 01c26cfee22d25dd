// The thread that serves gRPC's streaming calls: it takes new calls, starts the writes of their
// replies and handles what gRPC has completed.
#ifndef LSSAR_SERVER_GRPC_REPLY_WRITER_H_
#define LSSAR_SERVER_GRPC_REPLY_WRITER_H_

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/net/socket_cork.h"

namespace lssar {

// The tag of an operation on the writer's queue. `run` is called on the writer's thread when gRPC
// has completed it; `ok` as of grpc::CompletionQueue::Next.
struct Completion {
  std::function<void(bool ok)> run;
};

// The replies of an engine step are written together: one wake-up of this thread for all streams of
// the step, and one packet for all streams of a connection.
//
// Threads  any, except where stated
class ReplyWriter {
 public:
  // A call that has replies.
  class Stream {
   public:
    virtual ~Stream() = default;
    // Starts to write what is buffered. The writer's thread.
    virtual void WriteReplies() = 0;
    // Null: the call comes from this process.
    virtual SocketCork* Socket() const = 0;
  };

  // Runs nothing before Start.
  explicit ReplyWriter(std::unique_ptr<grpc::ServerCompletionQueue> queue);
  ~ReplyWriter();
  ReplyWriter(const ReplyWriter&) = delete;
  ReplyWriter& operator=(const ReplyWriter&) = delete;

  grpc::ServerCompletionQueue* Queue() const { return queue_.get(); }

  // Starts the thread. Call once, when the first calls have been asked for: the thread sees what
  // was written before.
  void Start();

  // Waits until every call has ended, then ends the thread. Call when gRPC's server has shut down,
  // and before it is destroyed: it still completes what was pending. Idempotent.
  void Stop();

  // Calls, requests for calls and wake-ups that still use the queue.
  void AddCall();
  void RemoveCall();

  // The writer's thread will call WriteReplies: soon, or if the engine's thread calls this, after
  // its next Flush.
  void Schedule(std::shared_ptr<Stream> stream);
  // The engine has handed out the results of a step. The engine's thread.
  // Cost  one wake-up if a stream is scheduled and the writer's thread sleeps
  void Flush();
  // An engine has ended: its thread's id may come again, of a thread that calls no Flush.
  void ForgetEngineThread();

 private:
  void Run();
  // True: the caller must call Wake. Requires  mutex_
  bool MustWake();
  void Wake();
  void WriteScheduled();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  Completion woken_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable calls_ended_;
  int64_t num_calls_ = 0;
  bool is_stopped_ = false;
  std::vector<std::shared_ptr<Stream>> scheduled_;
  bool will_write_ = false;        // the alarm is set, or is about to be
  std::thread::id engine_thread_;  // which calls Flush; none before its first call

  std::mutex alarm_mutex_;  // the thread that the alarm wakes never takes it
  grpc::Alarm alarm_;

  std::vector<std::shared_ptr<Stream>> writing_;  // the writer's thread only
  std::thread thread_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_REPLY_WRITER_H_
