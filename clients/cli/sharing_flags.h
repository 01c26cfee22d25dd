// How a request shares the engine with others: priority and prefix cache.
#ifndef LSSAR_CLIENTS_CLI_SHARING_FLAGS_H_
#define LSSAR_CLIENTS_CLI_SHARING_FLAGS_H_

#include <optional>
#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace lssar::cli {

// Unset stays unset on the wire.
struct SharingFlags {
  std::optional<int> priority;
  bool no_prefix_cache = false;
  std::string cache_salt;
};

void AddSharingFlags(CLI::App* app, SharingFlags* flags);

// `Request`: v1::GenerateRequest, v1::ScoreRequest or v1::CaptureAttentionRequest.
template <typename Request>
void FillSharing(const SharingFlags& flags, Request* request) {
  if (flags.priority) request->set_priority(*flags.priority);
  if (flags.no_prefix_cache) request->set_use_prefix_cache(false);
  request->set_cache_salt(flags.cache_salt);
}

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SHARING_FLAGS_H_
