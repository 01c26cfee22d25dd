// A connection's socket as its calls see it: packets are held back while several replies are
// written.
#ifndef LSSAR_SERVER_NET_SOCKET_CORK_H_
#define LSSAR_SERVER_NET_SOCKET_CORK_H_

#include <utility>

#include "server/net/file_descriptor.h"

namespace lssar {

// gRPC writes each message with a system call of its own. A corked socket collects what is written;
// EndWrites sends it in as few packets as possible. The kernel sends by itself after 200 ms.
//
// Threads  Get: any. Everything else: the thread of ReplyWriter
class SocketCork {
 public:
  explicit SocketCork(FileDescriptor socket) : socket_(std::move(socket)) {}

  int Get() const { return socket_.Get(); }

  // Counts the calls that are about to write. The second one corks the socket: a single reply gains
  // nothing.
  void BeginWrite() {
    if (++num_writes_ == 2) SetCork(1);
  }
  // After the writes of all calls that began.
  void EndWrites() {
    if (std::exchange(num_writes_, 0) >= 2) SetCork(0);
  }

 private:
  void SetCork(int value) const;

  const FileDescriptor socket_;
  int num_writes_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_SOCKET_CORK_H_
