#include "server/net/socket_cork.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace lssar {

// A failure costs speed only: the connection has ended, or it is not TCP.
void SocketCork::SetCork(int value) const {
  setsockopt(socket_.Get(), IPPROTO_TCP, TCP_CORK, &value, sizeof(value));
}

}  // namespace lssar
