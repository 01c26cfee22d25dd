// Decoding at great depths in llama.cpp, for kernels/BENCHMARKS.md: llama-bench computes the prompt
// first, which takes hours at 128K on two cores. This program computes 1024 tokens and repeats
// their K and V up to the depth (softmax's time does not depend on the values), through
// llama_state_seq_set_data.
//
//   deep_llama GGUF THREADS FLASH_ATTENTION REPEATS DEPTH...   prints tokens/s and resident MiB
//
// Built where CMake is given llama.cpp: -DLSSAR_LLAMA_CPP=ITS_SOURCES, with its build in build/.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <llama.h>

namespace {

constexpr int kComputed = 1024;  // tokens
constexpr int kDecodes = 8;      // tokens of a sample

void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

long ResidentMib() {
  long size = 0, resident = 0;
  FILE* const file = std::fopen("/proc/self/statm", "r");
  Check(file != nullptr && std::fscanf(file, "%ld %ld", &size, &resident) == 2, "statm");
  std::fclose(file);
  return resident / 256;  // pages of 4 KiB
}

bool Decode(llama_context* context, int position, int num_tokens, int num_vocab) {
  llama_batch batch = llama_batch_init(num_tokens, 0, 1);
  batch.n_tokens = num_tokens;
  for (int i = 0; i < num_tokens; ++i) {
    batch.token[i] = (position + i) * 7919 % (num_vocab - 10) + 5;
    batch.pos[i] = position + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i + 1 == num_tokens;
  }
  const bool ok = llama_decode(context, batch) == 0;
  llama_batch_free(batch);
  return ok;
}

// Reads and writes the state of one sequence, as llama_kv_cache::state_write lays it out.
class Repeater {
 public:
  Repeater(const std::vector<uint8_t>& from, uint32_t num_cells) : at_(from.data()) {
    to_.reserve(from.size() * (num_cells / kComputed + 1));
    Copy<uint32_t>();  // magic
    Copy<int32_t>();   // the sequence
    Check(Copy<uint32_t>() == 1, "one stream");
    const auto num_old = Take<uint32_t>();
    Check(num_old == kComputed, "the number of cells");
    Put(num_cells);
    for (uint32_t i = 0; i < num_cells; ++i) {
      if (i < num_old) {
        Take<int32_t>();
        Check(Take<uint32_t>() == 1, "one sequence a cell");
        Take<int32_t>();
      }
      Put(int32_t(i));
      Put(uint32_t{1});
      Put(int32_t{0});
    }
    const auto is_transposed = Copy<uint32_t>();
    const auto num_layers = Copy<uint32_t>();
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      Copy<int32_t>();
      Repeat(size_t(Copy<uint64_t>()), num_cells);
    }
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      Copy<int32_t>();
      if (is_transposed == 0) {
        Repeat(size_t(Copy<uint64_t>()), num_cells);
        continue;
      }
      const auto element_size = Copy<uint32_t>();
      const auto num_rows = Copy<uint32_t>();
      for (uint32_t row = 0; row < num_rows; ++row) Repeat(element_size, num_cells);
    }
    Check(at_ == from.data() + from.size(), "the end of the state");
  }

  std::vector<uint8_t> Take() { return std::move(to_); }

 private:
  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  template <typename T>
  void Put(T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    to_.insert(to_.end(), bytes, bytes + sizeof(value));
  }
  template <typename T>
  T Copy() {
    const T value = Take<T>();
    Put(value);
    return value;
  }
  void Repeat(size_t cell_size, uint32_t num_cells) {
    for (uint32_t i = 0; i < num_cells; i += kComputed) {
      const size_t count = std::min<size_t>(kComputed, num_cells - i);
      to_.insert(to_.end(), at_, at_ + count * cell_size);
    }
    at_ += kComputed * cell_size;
  }

  const uint8_t* at_;
  std::vector<uint8_t> to_;
};

}  // namespace

int main(int argc, char** argv) {
  Check(argc >= 6, "deep_llama GGUF THREADS FLASH_ATTENTION REPEATS DEPTH...");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_load_all();
  llama_model_params model_params = llama_model_default_params();
  llama_model* const model = llama_model_load_from_file(argv[1], model_params);
  Check(model != nullptr, "the model");
  const int num_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (int i = 5; i < argc; ++i) {
    const int depth = std::atoi(argv[i]);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = uint32_t((depth + 1024 + 255) / 256 * 256);
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
    params.flash_attn_type = std::strcmp(argv[3], "on") == 0 ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                                             : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F16;
    llama_context* const context = llama_init_from_model(model, params);
    Check(context != nullptr, "the context");
    if (depth >= kComputed) {
      for (int j = 0; j < kComputed; j += 512) {
        Check(Decode(context, j, 512, num_vocab), "the prompt");
      }
      std::vector<uint8_t> state(llama_state_seq_get_size(context, 0));
      Check(llama_state_seq_get_data(context, state.data(), state.size(), 0) == state.size(),
            "get_data");
      state = Repeater(state, uint32_t(depth)).Take();
      Check(llama_state_seq_set_data(context, state.data(), state.size(), 0) > 0, "set_data");
    }
    std::vector<double> rates;
    for (int repeat = -1; repeat < std::atoi(argv[4]); ++repeat) {  // the first warms up
      llama_memory_seq_rm(llama_get_memory(context), 0, depth, -1);
      const auto from = std::chrono::steady_clock::now();
      for (int j = 0; j < kDecodes; ++j) Check(Decode(context, depth + j, 1, num_vocab), "decode");
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - from;
      if (repeat >= 0) rates.push_back(kDecodes / seconds.count());
    }
    std::sort(rates.begin(), rates.end());
    std::printf("%d %s %.2f (%.2f to %.2f) tokens/s, %ld MiB\n", depth, argv[3],
                rates[rates.size() / 2], rates.front(), rates.back(), ResidentMib());
    std::fflush(stdout);
    llama_free(context);
  }
}
