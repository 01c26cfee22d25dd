#include "clients/cli/sharing_flags.h"

#include <CLI/CLI.hpp>

namespace lssar::cli {

void AddSharingFlags(CLI::App* app, SharingFlags* flags) {
  constexpr char kGroup[] = "Beside others";
  app->add_option("--priority", flags->priority, "higher runs first [-10 to 10; default 0]")
      ->option_text("N")
      ->group(kGroup);
  app->add_flag("--no-prefix-cache", flags->no_prefix_cache,
                "neither take the prompt from the prefix cache nor leave it there")
      ->group(kGroup);
  app->add_option("--cache-salt", flags->cache_salt,
                  "share cached prompts with equal salts alone [up to 128 bytes; default: none]")
      ->option_text("TEXT")
      ->group(kGroup);
}

}  // namespace lssar::cli
