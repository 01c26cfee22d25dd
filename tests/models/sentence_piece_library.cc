#include "tests/models/sentence_piece_library.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cstdio>
#include <utility>

#include "base/check.h"

namespace lssar::testing {
namespace {

class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  size_t at_ = 0;
};

void Check(const sentencepiece::util::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  LSSAR_CHECK(status.ok());
}

}  // namespace

struct SentencePieceLibrary::Processor {
  sentencepiece::SentencePieceProcessor library;
};

SentencePieceLibrary::SentencePieceLibrary(std::string_view file)
    : processor_(std::make_unique<Processor>()) {
  Check(processor_->library.LoadFromSerializedProto({file.data(), file.size()}));
}
SentencePieceLibrary::~SentencePieceLibrary() = default;

int SentencePieceLibrary::NumPieces() const { return processor_->library.GetPieceSize(); }

std::vector<int> SentencePieceLibrary::Encode(std::string_view text) const {
  std::vector<int> ids;
  Check(processor_->library.Encode({text.data(), text.size()}, &ids));
  return ids;
}

std::string SentencePieceLibrary::Decode(const std::vector<int>& ids) const {
  std::string text;
  Check(processor_->library.Decode(ids, &text));
  return text;
}

std::string TrainSentencePiece(const std::vector<std::string>& lines,
                               std::unordered_map<std::string, std::string> options) {
  options.try_emplace("minloglevel", "2");
  options.try_emplace("num_threads", "1");
  options.try_emplace("hard_vocab_limit", "false");
  Lines iterator(lines);
  std::string file;
  Check(sentencepiece::SentencePieceTrainer::Train(options, &iterator, &file));
  return file;
}

}  // namespace lssar::testing
