// `lssar import`, `quantize`, `export` and `verify`: these programs are in Python
// (clients/python/lssar/checkpoints), because they read what PyTorch writes. This file has
// their help and runs them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "clients/cli/command.h"
#include "clients/cli/python_program.h"

namespace lssar::cli {
namespace {

constexpr PythonProgram kProgram = {
    .script = "lssar-checkpoint", .module = "lssar.checkpoints.command", .extra = "import"};

struct CheckpointCommandInfo {
  const char* name;
  const char* footer;
};

constexpr CheckpointCommandInfo kImport = {
    "import",
    "  SOURCE                      FILE.gguf (llama, qwen2, qwen3, gptneox, gpt2); a Hugging Face\n"
    "                              directory (gpt2, llama, mistral, qwen2, qwen3, gpt_neox);\n"
    "                              FILE.pt of nanoGPT, modded-nanogpt or models/training;\n"
    "                              model_*.bin of llm.c; a .safetensors file\n"
    "  --base SOURCE --delta DIR   a delta of models/training/heal and the source it was made of\n"
    "  --out DIR                   the checkpoint directory; required\n"
    "  --attention KIND            lssar, lssa, softmax, ...: what the model was trained with\n"
    "  --p P                       power of the re-weighting of lssar, (0, 1000]\n"
    "  --phi NAME                  phi of kind phi\n"
    "  --set FIELD=VALUE           a field of config.json that the source does not say; "
    "repeatable\n"
    "  --ignore FIELD              a field of the source that changes nothing; repeatable\n"
    "  --logits FILE               .npz or .safetensors with tokens and logits of your own model\n"
    "                              in float32: nothing is written if the import differs\n"
    "  --tokenizer PATH            file or directory; default: beside the source\n"
    "  --dtype fp32|fp16|bf16      type of the matrices; default: the source's\n"
    "  --overwrite                 replace DIR\n"
    "  --no-generate               do not start a server for a first sentence\n"
    "  --json                      print the report as JSON\n\n"
    "What the source does not say has to be given: the error lists it, and nothing is guessed.\n"
    "GGUF files and Hugging Face directories are softmax models unless --attention says another\n"
    "kind. No code of a .pt file is executed. Learned absolute positions (wpe) are refused.\n\n"
    "Examples:\n"
    "  lssar import SmolLM2-135M-Instruct.Q4_1.gguf --out model\n"
    "  lssar import hf-llama/ --out model --attention lssar --p 15 --dtype bf16\n"
    "  lssar import ckpt.pt --out model --attention lssar --p 15 --set activation_function=gelu "
    "--set rope_theta=10000 --set rope_layout=half"};

constexpr CheckpointCommandInfo kQuantize = {
    "quantize",
    "  DIR                         a checkpoint with float weights\n"
    "  --dtype int8|int4           the type of the matrices; default int8\n"
    "  --calibration TEXT          int4: a UTF-8 text file of at least 1,024 tokens, like the\n"
    "                              training text, for error feedback (GPTQ); default: none, round\n"
    "                              to nearest\n"
    "  --head int8|int4            int4: the type of wte and lm_head; default int4\n"
    "  --out DIR                   the new directory; required\n"
    "  --overwrite                 replace the new directory\n\n"
    "Without --calibration and --head, the new checkpoint gives the bits of the server's --dtype\n"
    "on the old one. It is smaller and loads without quantization. Only the cpu and reference\n"
    "devices serve int4.\n\n"
    "Examples:\n"
    "  lssar quantize model --out model-int8\n"
    "  lssar quantize model --dtype int4 --calibration book.txt --out model-int4"};

constexpr CheckpointCommandInfo kExport = {
    "export",
    "  DIR                         a checkpoint with float weights\n"
    "  --format FORMAT             safetensors (a directory, GPT-2's names), gguf-names (a\n"
    "                              directory, GGUF's names), torch (a .pt as nanoGPT's); required\n"
    "  --out PATH                  the new directory or file; required\n"
    "  --overwrite                 replace PATH\n\n"
    "`lssar import` reads each format.\n\n"
    "Examples:\n"
    "  lssar export model --format torch --out model.pt\n"
    "  lssar export model --format gguf-names --out model-gguf-names"};

constexpr CheckpointCommandInfo kVerify = {
    "verify",
    "  DIR                         a checkpoint\n"
    "  --devices LIST              default: cpu, reference and cuda where it is there\n"
    "  --server HOST:PORT          replay a saved request on this server\n"
    "  --request FILE.json         the request: {\"generate\": {...}}, as written by\n"
    "                              `lssar generate --save-request FILE.json`\n"
    "  --api-key KEY               of --server [or LSSAR_API_KEY]\n"
    "  --json                      print one JSON object\n\n"
    "Starts lssar-server with each device and compares log-probabilities with the golden rows, "
    "and\n"
    "bits between batches, step sizes and thread counts; measures tokens/s. Exit code 1: a device\n"
    "is off, or bits differ.\n"
    "With --server and --request: replays the request again, without the prefix cache and beside\n"
    "others; with DIR also on servers of its own with other threads, steps and pages; says where\n"
    "bits part.\n\n"
    "Examples:\n"
    "  lssar verify model --devices cpu --json\n"
    "  lssar verify model --server 127.0.0.1:50051 --request request.json"};

// The lssar-server beside this program, for first sentences and verify.
void NameServer() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  const std::filesystem::path server = self.parent_path() / "lssar-server";
  if (access(server.c_str(), X_OK) != 0) return;
  setenv("LSSAR_SERVER", server.c_str(), /*overwrite=*/0);
}

class CheckpointCommand : public Command {
 public:
  explicit CheckpointCommand(const CheckpointCommandInfo& info) : info_(info) {}

  void AddFlags(CLI::App* app) override {
    app_ = app;
    app->prefix_command();  // Python parses the arguments
    app->footer(info_.footer);
  }

  absl::Status Run() override {
    std::vector<std::string> arguments = app_->remaining();
    arguments.insert(arguments.begin(), info_.name);
    NameServer();
    return ExecPythonProgram(kProgram, std::move(arguments));
  }

 private:
  const CheckpointCommandInfo& info_;
  CLI::App* app_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> MakeImportCommand() {
  return std::make_unique<CheckpointCommand>(kImport);
}

std::unique_ptr<Command> MakeQuantizeCommand() {
  return std::make_unique<CheckpointCommand>(kQuantize);
}

std::unique_ptr<Command> MakeExportCommand() {
  return std::make_unique<CheckpointCommand>(kExport);
}

std::unique_ptr<Command> MakeVerifyCommand() {
  return std::make_unique<CheckpointCommand>(kVerify);
}

}  // namespace lssar::cli
