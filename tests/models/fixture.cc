#include "tests/models/fixture.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "kernels/check.h"
#include "models/safetensors.h"
#include "models/safetensors_header.h"
#include "nlohmann/json.hpp"

namespace lssar::testing {
namespace fs = std::filesystem;

ScratchDirectory::ScratchDirectory() {
  std::string pattern = (fs::temp_directory_path() / "lssar_test_XXXXXX").string();
  LSSAR_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() { fs::remove_all(path_); }

std::string ScratchDirectory::Write(const std::string& name, std::string_view bytes) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

void ScratchDirectory::CopyFrom(std::string_view directory) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const fs::path to = fs::path(path_) / entry.path().filename();
    fs::copy_file(entry.path(), to);
    fs::permissions(to, fs::perms::owner_write, fs::perm_options::add);
  }
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  LSSAR_CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string MakeRawSafetensors(std::string_view header, size_t num_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += char(header.size() >> (8 * i));
  file += header;
  return file + std::string(num_bytes, '\0');
}

std::string MakeSafetensors(const std::vector<RawTensor>& tensors) {
  nlohmann::ordered_json header;
  std::string bytes;
  for (const RawTensor& t : tensors) {
    header[t.name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {bytes.size(), bytes.size() + t.bytes.size()}}};
    bytes += t.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return MakeRawSafetensors(text, 0) + bytes;
}

std::string FloatBytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<RawTensor> ReadTensors(const std::string& path) {
  const absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  LSSAR_CHECK(file.ok());
  std::vector<RawTensor> tensors;
  for (const auto& [name, view] : file->Tensors()) {
    tensors.push_back({name,
                       std::string(NameOf(view.type)),
                       view.shape,
                       {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}});
  }
  return tensors;
}

std::unique_ptr<Backend> NewBackend(const std::string& name, int num_threads) {
  BackendOptions options;
  options.name = name;
  options.num_threads = num_threads;
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(options);
  LSSAR_CHECK(backend.ok());
  return *std::move(backend);
}

std::string MessageOf(const absl::Status& status) {
  LSSAR_CHECK(!status.ok());
  return std::string(status.message());
}

}  // namespace lssar::testing
