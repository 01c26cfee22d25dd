#include "tests/models/tokenizer_texts.h"

#include <fstream>
#include <string_view>

#include "tests/models/fixture.h"

namespace lssar::testing {
namespace {

// UTF-8 of a character that is no surrogate.
std::string Spell(uint32_t c) {
  if (c < 0x80) return {char(c)};
  if (c < 0x800) return {char(0xC0 | c >> 6), char(0x80 | (c & 0x3F))};
  if (c < 0x10000) {
    return {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 0x3F)), char(0x80 | (c & 0x3F))};
  }
  return {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 0x3F)), char(0x80 | (c >> 6 & 0x3F)),
          char(0x80 | (c & 0x3F))};
}

struct Range {
  uint32_t first, last;
};

constexpr Range kRanges[] = {
    {0x01, 0x7F},       {0x80, 0xFF},       {0x100, 0x17F},     {0x300, 0x36F},
    {0x370, 0x3FF},     {0x400, 0x4FF},     {0x590, 0x5FF},     {0x600, 0x6FF},
    {0x900, 0x97F},     {0xE00, 0xE7F},     {0x1100, 0x11FF},   {0x1E00, 0x1EFF},
    {0x2000, 0x206F},   {0x2070, 0x209F},   {0x2150, 0x218F},   {0x2580, 0x259F},
    {0x3000, 0x30FF},   {0x4E00, 0x9FFF},   {0xAC00, 0xD7A3},   {0xFB00, 0xFB06},
    {0xFE00, 0xFE0F},   {0xFF00, 0xFFEF},   {0x1D400, 0x1D7FF}, {0x1F300, 0x1F6FF},
    {0x1F1E6, 0x1F1FF}, {0x20000, 0x2A6DF}, {0xE0100, 0xE01EF}, {0x10FFF0, 0x10FFFF}};

constexpr std::string_view kParts[] = {"the",
                                       " the",
                                       " model",
                                       "attention",
                                       " ",
                                       "  ",
                                       "    ",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       "'s",
                                       "'LL",
                                       "don't",
                                       "1",
                                       "2026",
                                       ".",
                                       "...",
                                       "!?",
                                       "(x, y)",
                                       "\u00a0",
                                       "\u3000",
                                       "\u2581",
                                       "\u2581the",
                                       "e\u0301\u0327",
                                       "\ufb01",
                                       "\u00e9",
                                       "\U0001F469\u200D\U0001F469\u200D\U0001F467",
                                       "\U0001F44D\U0001F3FD",
                                       "<|user|>",
                                       "<|endoftext|>",
                                       "<s>",
                                       "</s>",
                                       "<unk>",
                                       "<0x0A>",
                                       "aaaaaaaaaa",
                                       "\u65e5\u672c\u8a9e\u3068\u4e2d\u6587"};

}  // namespace

const Tokenizer& Shipped() {
  static const auto tokenizer = LoadTokenizer(std::string(kShippedModel), 4096).value();
  return *tokenizer;
}

const Tokenizer& Gpt2() {
  static const auto tokenizer = LoadTokenizer("tests/models/gpt2", 50257).value();
  return *tokenizer;
}

std::string RandomText(std::mt19937* rng, int num_parts) {
  std::string text;
  for (int i = 0; i < num_parts; ++i) {
    if ((*rng)() % 2 == 0) {
      text += kParts[(*rng)() % std::size(kParts)];
      continue;
    }
    const Range& range = kRanges[(*rng)() % std::size(kRanges)];
    for (uint32_t left = 1 + uint32_t((*rng)() % 4); left > 0; --left) {
      text += Spell(range.first + uint32_t((*rng)() % (range.last - range.first + 1)));
    }
  }
  return text;
}

std::vector<std::string> DocumentLines() {
  std::vector<std::string> lines;
  for (const char* path : {"README.md", "models/README.md", "models/DESIGN.md", "kernels/DESIGN.md",
                           "runtime/DESIGN.md", "server/README.md"}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (!line.empty()) lines.push_back(line);
    }
  }
  return lines;
}

}  // namespace lssar::testing
