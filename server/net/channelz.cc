#include "server/net/channelz.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"

namespace lssar {
namespace {

using nlohmann::json;

constexpr intptr_t kDefaultPageSize = 0;

// Discarded if gRPC has nothing or something unexpected to tell.
json Parse(char* text) {
  if (text == nullptr) return json(json::value_t::discarded);
  const std::unique_ptr<char, decltype(&gpr_free)> owner(text, gpr_free);
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

const json* Find(const json* node, const char* name) {
  if (node == nullptr || !node->is_object()) return nullptr;
  const auto found = node->find(name);
  return found == node->end() ? nullptr : &*found;
}

// channelz writes 64-bit numbers as strings, and leaves zero out.
int64_t ReadNumber(const json* node, const char* name) {
  const json* const text = Find(node, name);
  int64_t number = 0;
  if (text == nullptr || !text->is_string()) return 0;
  return absl::SimpleAtoi(text->get_ref<const std::string&>(), &number) ? number : 0;
}

std::optional<int64_t> FindInServer(int64_t server_id, const std::string& peer, int64_t after) {
  while (true) {
    const json page = Parse(grpc_channelz_get_server_sockets(
        intptr_t(server_id), intptr_t(after + 1), kDefaultPageSize));
    const json* const sockets = Find(&page, "socketRef");
    if (sockets == nullptr || !sockets->is_array()) return std::nullopt;
    for (const json& socket : *sockets) {
      const json* const name = Find(&socket, "name");
      after = ReadNumber(&socket, "socketId");
      // "chttp2 ipv4:127.0.0.1:50000"
      if (name != nullptr && name->is_string() &&
          name->get_ref<const std::string&>().ends_with(" " + peer)) {
        return after;
      }
    }
    if (sockets->empty() || Find(&page, "end") != nullptr) return std::nullopt;
  }
}

}  // namespace

std::optional<int64_t> FindChannelzSocket(const std::string& peer, int64_t after) {
  const json servers = Parse(grpc_channelz_get_servers(/*start_server_id=*/0));
  const json* const list = Find(&servers, "server");
  if (list == nullptr || !list->is_array()) return std::nullopt;
  for (const json& server : *list) {
    const int64_t server_id = ReadNumber(Find(&server, "ref"), "serverId");
    if (const auto found = FindInServer(server_id, peer, after)) return found;
  }
  return std::nullopt;
}

std::optional<StreamCounts> ReadStreamCounts(int64_t socket_id) {
  const json reply = Parse(grpc_channelz_get_socket(intptr_t(socket_id)));
  const json* const socket = Find(&reply, "socket");
  if (socket == nullptr) return std::nullopt;
  const json* const data = Find(socket, "data");
  return StreamCounts{.num_started = ReadNumber(data, "streamsStarted"),
                      .num_answered = ReadNumber(data, "streamsSucceeded"),
                      .num_reset = ReadNumber(data, "streamsFailed")};
}

}  // namespace lssar
