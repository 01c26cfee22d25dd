#include "server/net/connection_dispatcher.h"

#include <utility>

#include "base/thread_name.h"

namespace lssar {

ConnectionDispatcher::ConnectionDispatcher(
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor)
    : acceptor_(std::move(acceptor)), thread_([this] { Run(); }) {}

ConnectionDispatcher::~ConnectionDispatcher() {
  Close();
  thread_.join();
}

void ConnectionDispatcher::Add(FileDescriptor socket) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  waiting_.push_back(std::move(socket));
  changed_.notify_one();
}

void ConnectionDispatcher::Close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  waiting_.clear();
  changed_.notify_one();
}

void ConnectionDispatcher::Run() {
  NameThisThread("dispatcher");
  while (true) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
      if (is_closed_) return;
      parameters.fd = waiting_.front().Release();
      waiting_.pop_front();
    }
    acceptor_->HandleNewConnection(&parameters);
  }
}

}  // namespace lssar
