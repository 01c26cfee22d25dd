// A bare connection, for clients that do not behave.
#ifndef LSSAR_TESTS_SERVER_TCP_CLIENT_H_
#define LSSAR_TESTS_SERVER_TCP_CLIENT_H_

namespace lssar {

// A socket connected to 127.0.0.1, which the caller closes.
int ConnectTo(int port);

// Binds the socket to a free port of 127.0.0.1. While it is bound and does not listen, connections
// are refused and nobody else gets the port. -> the port
int BindToAFreePort(int socket);

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_TCP_CLIENT_H_
