#include "server/grpc/reply_writer.h"

#include <grpc/support/time.h>

#include <utility>

#include "base/thread_name.h"

namespace lssar {

ReplyWriter::ReplyWriter(std::unique_ptr<grpc::ServerCompletionQueue> queue)
    : queue_(std::move(queue)), woken_{[this](bool) { WriteScheduled(); }} {}

ReplyWriter::~ReplyWriter() { Stop(); }

void ReplyWriter::Start() {
  thread_ = std::thread([this] {
    NameThisThread("reply-writer");
    Run();
  });
}

// gRPC allows no new operation on a queue that was shut down.
void ReplyWriter::Stop() {
  {
    std::unique_lock lock(mutex_);
    calls_ended_.wait(lock, [this] { return num_calls_ == 0; });
    if (std::exchange(is_stopped_, true)) return;
  }
  queue_->Shutdown();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Run();  // gRPC requires that a queue is emptied
  }
}

void ReplyWriter::AddCall() {
  const std::lock_guard lock(mutex_);
  ++num_calls_;
}

void ReplyWriter::RemoveCall() {
  const std::lock_guard lock(mutex_);
  if (--num_calls_ == 0) calls_ended_.notify_all();
}

void ReplyWriter::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Completion*>(tag)->run(ok);
}

void ReplyWriter::Schedule(std::shared_ptr<Stream> stream) {
  {
    const std::lock_guard lock(mutex_);
    scheduled_.push_back(std::move(stream));
    if (std::this_thread::get_id() == engine_thread_ || !MustWake()) return;
  }
  Wake();
}

void ReplyWriter::Flush() {
  {
    const std::lock_guard lock(mutex_);
    engine_thread_ = std::this_thread::get_id();
    if (scheduled_.empty() || !MustWake()) return;
  }
  Wake();
}

void ReplyWriter::ForgetEngineThread() {
  {
    const std::lock_guard lock(mutex_);
    engine_thread_ = {};
    // The thread has ended, so a new one may have had its id and have waited for its flush.
    if (scheduled_.empty() || !MustWake()) return;
  }
  Wake();
}

// A wake-up counts as a call: it uses the queue.
bool ReplyWriter::MustWake() {
  if (is_stopped_ || std::exchange(will_write_, true)) return false;
  ++num_calls_;
  return true;
}

// An alarm that is due at once is gRPC's way to put an event into a queue. Not under mutex_: the
// woken thread, which may run at once in place of this one, would stop at it.
void ReplyWriter::Wake() {
  const std::lock_guard lock(alarm_mutex_);
  alarm_.Set(queue_.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), &woken_);
}

void ReplyWriter::WriteScheduled() {
  {
    const std::lock_guard lock(mutex_);
    will_write_ = false;
    writing_.swap(scheduled_);
  }
  RemoveCall();
  for (const auto& stream : writing_) {
    if (SocketCork* const socket = stream->Socket()) socket->BeginWrite();
  }
  for (const auto& stream : writing_) stream->WriteReplies();
  for (const auto& stream : writing_) {
    if (SocketCork* const socket = stream->Socket()) socket->EndWrites();
  }
  writing_.clear();
}

}  // namespace lssar
