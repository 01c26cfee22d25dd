#include "tests/server/tcp_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/check.h"

namespace lssar {

int ConnectTo(int port) {
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  LSSAR_CHECK(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return client;
}

int BindToAFreePort(int socket) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  LSSAR_CHECK(bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0);
  LSSAR_CHECK(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

}  // namespace lssar
