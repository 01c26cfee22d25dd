#include "tests/server/zoo_checkpoint.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace lssar {
namespace {

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

Checkpoint ZooCheckpointWithoutWeights() {
  const std::string directory = kZooDirectory;
  Checkpoint checkpoint;
  checkpoint.name = "lssar-6m";
  checkpoint.config = ParseConfig(ReadText(directory + "/config.json"), "config.json").value();
  checkpoint.tokenizer = LoadTokenizer(directory, checkpoint.config.vocab_size).value();
  const auto json = nlohmann::json::parse(ReadText(directory + "/tokenizer_config.json"));
  checkpoint.chat_template =
      ChatTemplate::Parse(json.at("chat_template").get<std::string>()).value();
  checkpoint.add_bos = true;
  checkpoint.bos_token = json.at("bos_token").get<std::string>();
  checkpoint.eos_token = json.at("eos_token").get<std::string>();
  checkpoint.chat_stop_strings = json.at("stop_strings").get<std::vector<std::string>>();
  return checkpoint;
}

}  // namespace lssar
