// Stream counts of gRPC's server connections, from gRPC's own channelz registry.
#ifndef LSSAR_SERVER_NET_CHANNELZ_H_
#define LSSAR_SERVER_NET_CHANNELZ_H_

#include <cstdint>
#include <optional>
#include <string>

#include "server/net/traffic_watch.h"

namespace lssar {

// The registry's id of the connection whose client is `peer` (PeerAddress::uri). Ids grow. Searches
// the connections of every gRPC server of this process with an id above `after`.
// Cost  reads the names of those connections
std::optional<int64_t> FindChannelzSocket(const std::string& peer, int64_t after);

// Nullopt: the connection has ended.
// Cost  some 10 us: gRPC renders JSON
std::optional<StreamCounts> ReadStreamCounts(int64_t socket_id);

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_CHANNELZ_H_
