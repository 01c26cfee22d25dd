#include "server/config/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/config/flags.h"
#include "server/config/security_warnings.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CommandLine Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "lssar-server");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

// Sets an environment variable for one test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* const name_;
};

std::string WriteFile(const std::string& text) {
  static const ScratchDirectory directory;
  return directory.Write("server.toml", text);
}

TEST(OptionsTest, DefaultsMatchTheHelp) {
  const CommandLine line = Parse({"--model", "DIR"});
  ASSERT_FALSE(line.exit_code.has_value()) << line.text;
  EXPECT_EQ(line.options.model.directory, "DIR");
  EXPECT_EQ(line.options.listen, "127.0.0.1:50051");
  EXPECT_EQ(line.options.http_listen, "127.0.0.1:8080");
  EXPECT_EQ(line.options.drain_timeout, absl::Seconds(30));
  EXPECT_EQ(line.options.step_timeout, absl::Minutes(1));
  EXPECT_EQ(line.options.log_level, "info");
  EXPECT_EQ(line.options.model.backend.name, "cpu");
  EXPECT_EQ(line.options.model.backend.num_threads, 0);
  EXPECT_FALSE(line.options.model.dtype.has_value());
  const EngineOptions& engine = line.options.model.engine;
  EXPECT_EQ(engine.max_model_len, 16384);
  EXPECT_EQ(engine.max_num_seqs, 64);
  EXPECT_EQ(engine.max_queued_requests, 64);
  EXPECT_EQ(engine.max_queued_tokens, 0);
  EXPECT_EQ(engine.max_num_batched_tokens, 512);
  EXPECT_EQ(engine.max_num_partial_prefills, 16);
  EXPECT_EQ(engine.chunked_prefill_size, 32);
  EXPECT_TRUE(engine.enable_prefix_caching);
  EXPECT_EQ(engine.page_size, 64);
  EXPECT_EQ(engine.kv_cache_dtype, DType::kF16);
  EXPECT_EQ(engine.kv_cache_bytes, 0);
}

TEST(OptionsTest, KvCacheTypes) {
  for (const DType type : {DType::kF16, DType::kF32, DType::kI8, DType::kFx16}) {
    const std::string flag = StrCat("--kv-cache-dtype=", NameOf(type));
    const CommandLine line = Parse({"--model=DIR", flag.c_str()});
    EXPECT_EQ(line.options.model.engine.kv_cache_dtype, type) << flag;
  }
}

TEST(OptionsTest, EveryFlagSetsItsOption) {
  const CommandLine line = Parse({"--model=DIR",
                                  "--listen=0.0.0.0:0",
                                  "--http-listen=[::1]:9",
                                  "--max-model-len=4096",
                                  "--max-num-seqs=3",
                                  "--max-queued-requests=5",
                                  "--max-n=100",
                                  "--served-model-name=org/model,other",
                                  "--metrics-prefix=vllm",
                                  "--max-num-batched-tokens=128",
                                  "--page-size=32",
                                  "--kv-cache-dtype=fp32",
                                  "--max-queued-tokens=102400",
                                  "--max-num-partial-prefills=4",
                                  "--chunked-prefill-size=40",
                                  "--no-enable-prefix-caching",
                                  "--speculative=off",
                                  "--draft-model=SMALL",
                                  "--draft-dtype=int8",
                                  "--num-speculative-tokens=9",
                                  "--prompt-lookup-min=2",
                                  "--prompt-lookup-max=5",
                                  "--kv-cache-memory=512M",
                                  "--dtype=bf16",
                                  "--device=cuda:3",
                                  "--batch-invariant",
                                  "--threads=2",
                                  "--drain-timeout=1m30s",
                                  "--step-timeout=90",
                                  "--log-level=warning"});
  ASSERT_FALSE(line.exit_code.has_value()) << line.text;
  EXPECT_EQ(line.options.model.max_choices, 100);
  EXPECT_THAT(line.options.model.served_names, ElementsAre("org/model", "other"));
  EXPECT_TRUE(line.options.vllm_metrics);
  EXPECT_EQ(line.options.listen, "0.0.0.0:0");
  EXPECT_EQ(line.options.http_listen, "[::1]:9");
  EXPECT_EQ(line.options.drain_timeout, absl::Seconds(90));
  EXPECT_EQ(line.options.step_timeout, absl::Seconds(90));
  EXPECT_EQ(line.options.log_level, "warning");
  EXPECT_EQ(line.options.model.dtype, DType::kBF16);
  EXPECT_EQ(line.options.model.backend.name, "cuda:3");
  EXPECT_TRUE(line.options.model.backend.batch_invariant);
  EXPECT_EQ(line.options.model.backend.num_threads, 2);
  const EngineOptions& engine = line.options.model.engine;
  EXPECT_EQ(engine.max_model_len, 4096);
  EXPECT_EQ(engine.max_num_seqs, 3);
  EXPECT_EQ(engine.max_queued_requests, 5);
  EXPECT_EQ(line.options.model.speculative_method, SpeculativeMethod::kOff);
  EXPECT_EQ(line.options.model.draft_directory, "SMALL");
  EXPECT_EQ(line.options.model.draft_dtype, DType::kI8);
  EXPECT_EQ(engine.num_speculative_tokens, 9);
  EXPECT_EQ(engine.prompt_lookup_min, 2);
  EXPECT_EQ(engine.prompt_lookup_max, 5);
  EXPECT_EQ(engine.max_num_batched_tokens, 128);
  EXPECT_EQ(engine.max_queued_tokens, 102400);
  EXPECT_EQ(engine.max_num_partial_prefills, 4);
  EXPECT_EQ(engine.chunked_prefill_size, 40);
  EXPECT_FALSE(engine.enable_prefix_caching);
  EXPECT_EQ(engine.page_size, 32);
  EXPECT_EQ(engine.kv_cache_dtype, DType::kF32);
  EXPECT_EQ(engine.kv_cache_bytes, int64_t{512} << 20);
}

TEST(OptionsTest, ASwitchCanBeSetByFlagVariableAndFile) {
  const auto is_enabled = [](const CommandLine& line) {
    EXPECT_FALSE(line.exit_code.has_value()) << line.text;
    return line.options.model.engine.enable_prefix_caching;
  };
  EXPECT_TRUE(is_enabled(Parse({"--model=D", "--enable-prefix-caching"})));
  EXPECT_FALSE(is_enabled(Parse({"--model=D", "--no-enable-prefix-caching"})));
  const std::string path = WriteFile("enable-prefix-caching = false\n");
  EXPECT_FALSE(is_enabled(Parse({"--model=D", "--config", path.c_str()})));
  EXPECT_TRUE(
      is_enabled(Parse({"--model=D", "--config", path.c_str(), "--enable-prefix-caching"})));
  {
    const ScopedVariable variable("LSSAR_ENABLE_PREFIX_CACHING", "false");
    EXPECT_FALSE(is_enabled(Parse({"--model=D"})));
    EXPECT_TRUE(is_enabled(Parse({"--model=D", "--enable-prefix-caching"})));
  }
  const ScopedVariable variable("LSSAR_ENABLE_PREFIX_CACHING", "on");
  const CommandLine line = Parse({"--model=D"});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, AllOf(HasSubstr("LSSAR_ENABLE_PREFIX_CACHING"), HasSubstr("\"on\""),
                               HasSubstr("true or false")));
}

TEST(OptionsTest, ADraftModelTurnsSpeculationOn) {
  const auto method = [](const std::vector<const char*>& arguments) {
    const CommandLine line = Parse(arguments);
    EXPECT_FALSE(line.exit_code.has_value()) << line.text;
    return *ChooseSpeculativeMethod(line.options.model);
  };
  EXPECT_EQ(method({"--model=D"}), SpeculativeMethod::kOff);
  EXPECT_EQ(method({"--model=D", "--speculative=ngram"}), SpeculativeMethod::kNgram);
  EXPECT_EQ(method({"--model=D", "--draft-model=S"}), SpeculativeMethod::kDraftModel);
  EXPECT_EQ(method({"--model=D", "--draft-model=S", "--speculative=off"}), SpeculativeMethod::kOff);
  EXPECT_EQ(method({"--model=D", "--speculative=draft-model", "--draft-model=S"}),
            SpeculativeMethod::kDraftModel);
}

// A flag that asks for what is anyway, or that another one has set aside in so many words, is fine.
TEST(OptionsTest, AFlagThatNeedsAnotherIsTakenWithIt) {
  for (const std::vector<const char*>& arguments : std::vector<std::vector<const char*>>{
           {"--draft-dtype=int4", "--draft-model=S", "--num-speculative-tokens=4"},
           {"--speculative=ngram", "--num-speculative-tokens=4", "--prompt-lookup-min=2"},
           {"--speculative=off", "--num-speculative-tokens=4", "--prompt-lookup-max=9"},
           {"--speculative=off", "--draft-dtype=int4"},
           {"--otlp-sample=0.5", "--otlp-endpoint=http://127.0.0.1:4318"},
           {"--batch-max-bytes=1G", "--batch-dir=B"},
           {"--http-cors-origins=*", "--metrics-prefix=vllm", "--web-page=on"},
           {"--listen=unix:/s", "--tls-cert=c", "--tls-key=k"},
           {"--http-listen=off", "--web-page=off", "--metrics-prefix=lssar"},
           {"--share-prefix-cache-between-keys", "--api-keys=K"},
           {"--no-share-prefix-cache-between-keys", "--no-enable-prefix-caching"}}) {
    std::vector<const char*> all = {"--model=D"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    EXPECT_FALSE(Parse(all).exit_code.has_value()) << Parse(all).text;
  }
}

TEST(OptionsTest, AFlagWithoutEffectIsNamedWhereverItIsSet) {
  const auto error = [](const std::vector<const char*>& arguments) {
    const CommandLine line = Parse(arguments);
    EXPECT_EQ(line.exit_code, 2);
    return line.text;
  };
  const std::string path = WriteFile("otlp-sample = 0.5\n");
  EXPECT_THAT(error({"--model=D", "--config", path.c_str()}),
              HasSubstr("--otlp-sample needs --otlp-endpoint URL"));
  const ScopedVariable bytes("LSSAR_BATCH_MAX_BYTES", "1G");
  EXPECT_THAT(error({"--model=D"}), HasSubstr("--batch-max-bytes needs --batch-dir DIR"));
}

// One that asks the gRPC port, with the flags of the server.
TEST(OptionsTest, AProbeMayHaveFlagsOfThePortThatItLeavesOut) {
  const CommandLine line = Parse({"--check-health", "--http-listen=off", "--metrics-prefix=vllm",
                                  "--batch-dir=B", "--web-page=on"});
  EXPECT_FALSE(line.exit_code.has_value()) << line.text;
}

// As of Python's LLM, whose private server has no HTTP port.
TEST(OptionsTest, AVariableForServersWithAPortIsNoErrorOfOneWithout) {
  const ScopedVariable prefix("LSSAR_METRICS_PREFIX", "vllm");
  const ScopedVariable certificate("LSSAR_TLS_CERT", "c");
  const ScopedVariable key("LSSAR_TLS_KEY", "k");
  const CommandLine line = Parse({"--model=D", "--listen=unix:/s", "--http-listen=off"});
  EXPECT_FALSE(line.exit_code.has_value()) << line.text;
  EXPECT_EQ(
      Parse({"--model=D", "--http-listen=off", "--metrics-prefix=vllm", "--web-page=on"}).exit_code,
      2);
}

TEST(OptionsTest, TheHttpPortCanBeOff) {
  EXPECT_EQ(Parse({"--model=D", "--http-listen=off"}).options.http_listen, "");
}

TEST(OptionsTest, DtypeAcceptsEveryType) {
  EXPECT_EQ(Parse({"--model=D", "--dtype=int8"}).options.model.dtype, DType::kI8);
  EXPECT_EQ(Parse({"--model=D", "--dtype=int4"}).options.model.dtype, DType::kI4);
  EXPECT_EQ(Parse({"--model=D", "--dtype=fp16"}).options.model.dtype, DType::kF16);
  EXPECT_EQ(Parse({"--model=D", "--dtype=fp32"}).options.model.dtype, DType::kF32);
  EXPECT_EQ(Parse({"--model=D", "--dtype=auto"}).options.model.dtype, std::nullopt);
}

TEST(OptionsTest, TokensMayBeCountedInK) {
  EXPECT_EQ(Parse({"--model=D", "--max-model-len=16K"}).options.model.engine.max_model_len, 16384);
  EXPECT_EQ(Parse({"--model=D", "--max-model-len=16k"}).options.model.engine.max_model_len, 16384);
  EXPECT_EQ(Parse({"--model=D", "--max-queued-tokens=1K"}).options.model.engine.max_queued_tokens,
            1024);
  const std::string path = WriteFile("max-model-len = \"32K\"\n");
  const CommandLine line = Parse({"--model=D", "--config", path.c_str()});
  EXPECT_EQ(line.options.model.engine.max_model_len, 32768);
}

TEST(OptionsTest, FlagOverEnvironmentOverFileOverDefault) {
  const std::string path = WriteFile(
      "max-model-len = 1000\nmax-num-seqs = 10\nmax-num-batched-tokens = 100\nkv-cache-dtype = "
      "\"fp32\"\n");
  const ScopedVariable context("LSSAR_MAX_MODEL_LEN", "2000");
  const ScopedVariable sequences("LSSAR_MAX_NUM_SEQS", "20");
  const CommandLine line =
      Parse({"--model", "DIR", "--config", path.c_str(), "--max-model-len", "3000"});
  ASSERT_FALSE(line.exit_code.has_value()) << line.text;
  const EngineOptions& engine = line.options.model.engine;
  EXPECT_EQ(engine.max_model_len, 3000);          // flag
  EXPECT_EQ(engine.max_num_seqs, 20);             // environment
  EXPECT_EQ(engine.max_num_batched_tokens, 100);  // file
  EXPECT_EQ(engine.kv_cache_dtype, DType::kF32);  // file
  EXPECT_EQ(engine.max_queued_requests, 64);      // default
}

TEST(OptionsTest, TheEnvironmentCanSetEverything) {
  const std::string path = WriteFile("drain-timeout = \"5s\"\n");
  const ScopedVariable model("LSSAR_MODEL", "DIR");
  const ScopedVariable config("LSSAR_CONFIG", path.c_str());
  const CommandLine line = Parse({});
  ASSERT_FALSE(line.exit_code.has_value()) << line.text;
  EXPECT_EQ(line.options.model.directory, "DIR");
  EXPECT_EQ(line.options.drain_timeout, absl::Seconds(5));
}

TEST(OptionsTest, HelpGroupsFlagsAndEndsWithExamples) {
  const CommandLine line = Parse({"--help"});
  EXPECT_EQ(line.exit_code, 0);
  EXPECT_THAT(line.text, AllOf(HasSubstr("Model:"), HasSubstr("Limits:"), HasSubstr("Memory:"),
                               HasSubstr("Machine:"), HasSubstr("Serving:")));
  EXPECT_THAT(line.text, AllOf(HasSubstr("tokens"), HasSubstr("default 16384"),
                               HasSubstr("[1, 1024]"), HasSubstr("LSSAR_MAX_MODEL_LEN")));
  const size_t examples = line.text.find("Examples:");
  ASSERT_NE(examples, std::string::npos);
  EXPECT_THAT(line.text.substr(examples), HasSubstr("lssar-server --model models/zoo/lssar-6m\n"));
}

TEST(OptionsTest, MisspeltVariablesAreNamed) {
  const char* const environment[] = {"LSSAR_MAX_MODEL_LENGTH=64",
                                     "LSSAR_MODEL=x",
                                     "LSSAR_MODELS=x",
                                     "LSSAR_CONFIG=x",
                                     "LSSAR_API_KEY=x",
                                     "LSSAR_API_KEYS=x",
                                     "LSSAR_HISTORY=",
                                     "LSSAR_max_model_len=1",
                                     "LSSAR_1_HOST=a",
                                     "MAX_MODEL_LEN=1",
                                     "LSSAR_=1",
                                     nullptr};
  const auto sentence = [](const char* name, const char* nearest) {
    return std::string("the variable ") + name + " of the environment is not read; did you mean " +
           nearest + "?";
  };
  EXPECT_THAT(MisspeltVariables(environment),
              ElementsAre(sentence("LSSAR_MAX_MODEL_LENGTH", "LSSAR_MAX_MODEL_LEN"),
                          sentence("LSSAR_MODELS", "LSSAR_MODEL"),
                          sentence("LSSAR_max_model_len", "LSSAR_MAX_MODEL_LEN")));
}

TEST(OptionsTest, VersionIsPrinted) {
  const CommandLine line = Parse({"--version"});
  EXPECT_EQ(line.exit_code, 0);
  EXPECT_EQ(line.text, std::string("lssar-server ") + LSSAR_VERSION + "\n");
}

struct BadLine {
  std::vector<const char*> arguments;
  std::vector<std::string> sentence;  // substrings
};

class BadLineTest : public testing::TestWithParam<BadLine> {};

TEST_P(BadLineTest, IsAUsageErrorThatNamesFlagValueAndLimit) {
  const CommandLine line = Parse(GetParam().arguments);
  EXPECT_EQ(line.exit_code, 2);
  for (const std::string& part : GetParam().sentence) EXPECT_THAT(line.text, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    OptionsTest, BadLineTest,
    testing::Values(
        BadLine{{}, {"--model DIR is missing"}},
        BadLine{{"--model", "D", "--max-modl-len", "5"},
                {"unknown flag --max-modl-len", "did you mean --max-model-len?"}},
        BadLine{{"--modle=D"}, {"unknown flag --modle;", "did you mean --model?"}},
        BadLine{{"--model", "D", "--zzzzzzzzz"}, {"unknown flag --zzzzzzzzz\n"}},
        BadLine{{"--model", "D", "--threads", "2", "--threads", "3"},
                {"--threads is given 2 times; give it once"}},
        BadLine{{"--model", "D", "stray"}, {"unexpected argument stray"}},
        BadLine{{"stray"},
                {"unexpected argument stray; the checkpoint's directory is --model DIR"}},
        BadLine{{"--model=D", "--port", "8000"}, {"--http-listen HOST:PORT", "--listen HOST:PORT"}},
        BadLine{{"--model"}, {"--model"}},
        BadLine{{"--model", "D", "--max-model-len", "1"},
                {"--max-model-len", "\"1\"", "in [2, 1048576]"}},
        BadLine{{"--model", "D", "--max-model-len", "9x"}, {"--max-model-len", "\"9x\""}},
        BadLine{{"--model", "D", "--max-model-len", "1025K"}, {"in [2, 1048576]; 2K is 2048"}},
        BadLine{{"--model", "D", "--max-model-len", "9999999999K"}, {"in [2, 1048576]"}},
        BadLine{{"--model", "D", "--max-model-len", "K"}, {"in [2, 1048576]"}},
        BadLine{{"--model", "D", "--max-queued-tokens", "-1K"}, {"in [0, 1099511627776]"}},
        BadLine{{"--model", "D", "--max-num-seqs", "1K"}, {"in [1, 1024]"}},
        BadLine{{"--model", "D", "--max-num-seqs", "0"}, {"--max-num-seqs", "in [1, 1024]"}},
        BadLine{{"--model", "D", "--max-queued-requests", "65537"}, {"in [1, 65536]"}},
        BadLine{{"--model", "D", "--max-n", "1025"}, {"--max-n", "in [1, 1024]"}},
        BadLine{{"--model", "D", "--metrics-prefix", "sglang"}, {"one of lssar, vllm"}},
        BadLine{{"--model", "D", "--served-model-name", "a,,b"},
                {"--served-model-name", "org/model"}},
        BadLine{{"--model", "D", "--served-model-name", "a b"}, {"letters, digits"}},
        BadLine{{"--model", "D", "--served-model-name", "a,b,a"}, {"the name a twice"}},
        BadLine{{"--model", "D", "--max-num-batched-tokens", "16385"},
                {"--max-num-batched-tokens", "in [1, 16384]"}},
        BadLine{{"--model", "D", "--page-size", "17"}, {"--page-size", "one of 16, 32, 64"}},
        BadLine{{"--model", "D", "--kv-cache-dtype", "bf16"},
                {"\"bf16\"", "one of fp32, fp16, int8"}},
        BadLine{{"--model", "D", "--kv-cache-memory", "2T"},
                {"--kv-cache-memory", "\"2T\"", "K, M or G"}},
        BadLine{{"--model", "D", "--kv-cache-memory", "1GK"}, {"--kv-cache-memory", "\"1GK\""}},
        BadLine{{"--model", "D", "--kv-cache-memory", "K"}, {"--kv-cache-memory", "\"K\""}},
        BadLine{{"--model", "D", "--max-model-len", "1KK"}, {"\"1KK\""}},
        BadLine{{"--model", "D", "--kv-cache-memory", "-1"}, {"--kv-cache-memory", "\"-1\""}},
        BadLine{{"--model", "D", "--kv-cache-memory", "99999999999G"}, {"--kv-cache-memory"}},
        BadLine{{"--model", "D", "--dtype", "int2"}, {"one of auto, fp32, fp16, bf16, int8, int4"}},
        BadLine{{"--model", "D", "--device", "gpu"},
                {"--device", "\"gpu\"", "cpu, cuda, cuda:N such as cuda:0, or reference"}},
        BadLine{{"--model", "D", "--device", "cuda:"}, {"\"cuda:\"", "cuda:N"}},
        BadLine{{"--model", "D", "--device", "cuda:-1"}, {"\"cuda:-1\"", "cuda:N"}},
        BadLine{{"--model", "D", "--device", "cuda:one"}, {"\"cuda:one\"", "cuda:N"}},
        BadLine{{"--model", "D", "--threads", "-1"}, {"--threads", "in [0, 1024]"}},
        BadLine{{"--model", "D", "--drain-timeout", "2h"}, {"--drain-timeout", "[0, 1h]"}},
        BadLine{{"--model", "D", "--drain-timeout", "nan"}, {"--drain-timeout", "[0, 1h]"}},
        BadLine{{"--model", "D", "--drain-timeout", "soon"}, {"\"soon\""}},
        // The page's policy lists the origins.
        BadLine{{"--model", "D", "--http-cors-origins", "https://a.example; script-src *"},
                {"--http-cors-origins", "it must be * or origins"}},
        BadLine{{"--model", "D", "--http-cors-origins", "http://a.example;x"},
                {"--http-cors-origins", "it must be * or origins"}},
        BadLine{{"--model", "D", "--log-level", "loud"}, {"one of info, warning"}},
        BadLine{{"--model", "D", "--stream-buffer", "1K"},
                {"--stream-buffer", "[4096, 1073741824]"}},
        BadLine{{"--model", "D", "--max-calls", "0"}, {"--max-calls", "in [1, 65536]"}},
        BadLine{{"--model", "D", "--keepalive-time", "0s"}, {"--keepalive-time", "[1s, 1h]"}},
        BadLine{{"--model", "D", "--tls-cert", "c.pem"}, {"--tls-cert and --tls-key go together"}},
        BadLine{{"--model", "D", "--tls-client-ca", "c.pem"}, {"--tls-client-ca needs --tls-cert"}},
        BadLine{{"--model", "D", "--listen", "unix:/s", "--http-listen", "off", "--tls-cert", "c",
                 "--tls-key", "k"},
                {"--tls-cert needs a TCP port"}},
        BadLine{{"--model", "D", "--draft-dtype", "int4"},
                {"--draft-dtype needs --draft-model DIR"}},
        BadLine{{"--model", "D", "--num-speculative-tokens", "4"},
                {"--num-speculative-tokens needs --speculative ngram or --draft-model DIR"}},
        BadLine{{"--model", "D", "--prompt-lookup-min", "2"},
                {"--prompt-lookup-min needs --speculative ngram"}},
        BadLine{{"--model", "D", "--prompt-lookup-max", "9", "--draft-model", "S"},
                {"--prompt-lookup-max needs --speculative ngram"}},
        BadLine{{"--model", "D", "--otlp-sample", "1"},
                {"--otlp-sample needs --otlp-endpoint URL"}},
        BadLine{{"--model", "D", "--batch-dir", "B", "--http-listen", "off"},
                {"--batch-dir needs the HTTP port: leave --http-listen off out"}},
        BadLine{{"--model", "D", "--http-cors-origins", "*", "--http-listen", "off"},
                {"--http-cors-origins needs the HTTP port"}},
        BadLine{{"--model", "D", "--metrics-prefix", "vllm", "--http-listen", "off"},
                {"--metrics-prefix needs the HTTP port"}},
        BadLine{{"--model", "D", "--sse-comment-interval", "1s", "--http-listen", "off"},
                {"--sse-comment-interval needs the HTTP port"}},
        BadLine{{"--model", "D", "--web-page", "on", "--http-listen", "off"},
                {"--web-page needs the HTTP port"}},
        BadLine{{"--model", "D", "--share-prefix-cache-between-keys"},
                {"--share-prefix-cache-between-keys needs --api-keys FILE"}},
        BadLine{{"--model", "D", "--share-prefix-cache-between-keys", "--api-keys", "K",
                 "--no-enable-prefix-caching"},
                {"--share-prefix-cache-between-keys needs the prefix cache"}},
        BadLine{{"--model", "D", "--listen", "50051"}, {"--listen", "HOST:PORT"}},
        BadLine{{"--model", "D", "--listen", "localhost:70000"}, {"[0, 65535]"}},
        BadLine{{"--model", "D", "--listen", "off"}, {"--listen", "HOST:PORT"}},
        BadLine{{"--model", "D", "--listen", "::1:50051"},
                {"--listen", "in brackets: [::1]:50051"}},
        BadLine{{"--model", "D", "--http-listen", "::1:80"}, {"--http-listen", "in brackets"}},
        BadLine{{"--model", "D", "--api-keys", ""}, {"--api-keys", "must be a path"}},
        BadLine{{"--model", "D", "--tls-client-ca", ""}, {"--tls-client-ca", "must be a path"}},
        BadLine{{"--model", "D", "--http-listen", "8080"}, {"--http-listen", "HOST:PORT", "off"}},
        BadLine{{"--model", "D", "--speculative", "eagle"}, {"one of off, ngram, draft-model"}},
        BadLine{{"--model", "D", "--speculative", "draft-model"},
                {"--speculative draft-model needs --draft-model DIR"}},
        BadLine{{"--model", "D", "--speculative", "ngram", "--draft-model", "S"},
                {"--draft-model and --speculative ngram exclude each other"}},
        BadLine{{"--model", "D", "--draft-dtype", "int2"}, {"--draft-dtype", "one of auto, fp32"}},
        BadLine{{"--model", "D", "--step-timeout", "2h"}, {"--step-timeout", "[0, 1h]"}},
        BadLine{{"--model", "D", "--config", "/nowhere.toml"}, {"/nowhere.toml", "No such file"}}));

TEST(OptionsTest, AnInvalidVariableIsNamed) {
  const ScopedVariable pages("LSSAR_PAGE_SIZE", "17");
  const CommandLine line = Parse({"--model", "D"});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, AllOf(HasSubstr("LSSAR_PAGE_SIZE"), HasSubstr("\"17\"")));
}

TEST(OptionsTest, AnUnknownNameInTheFileSuggestsTheNearest) {
  const std::string path = WriteFile("max-model-length = 1000\n");
  const CommandLine line = Parse({"--model", "D", "--config", path.c_str()});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, AllOf(HasSubstr(path), HasSubstr("\"max-model-length\" is unknown"),
                               HasSubstr("did you mean \"max-model-len\"?")));
}

TEST(OptionsTest, AnInvalidValueInTheFileIsNamed) {
  const std::string path = WriteFile("page-size = 17\n");
  const CommandLine line = Parse({"--model", "D", "--config", path.c_str()});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, AllOf(HasSubstr("page-size is \"17\""), HasSubstr("16, 32, 64")));
}

TEST(OptionsTest, ASectionInTheFileIsRejected) {
  const std::string path = WriteFile("[engine]\nmax-model-len = 1000\n");
  const CommandLine line = Parse({"--model", "D", "--config", path.c_str()});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, HasSubstr("section \"engine\""));
}

TEST(OptionsTest, AFileThatIsNoTomlFileIsRejected) {
  const auto error = [](const std::string& path) {
    const CommandLine line = Parse({"--model", "D", "--config", path.c_str()});
    EXPECT_EQ(line.exit_code, 2) << path;
    return line.text;
  };
  EXPECT_THAT(error(testing::TempDir()), HasSubstr("is a directory, must be a regular file"));
  const std::string fifo = WriteFile("") + ".fifo";
  unlink(fifo.c_str());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error(fifo), HasSubstr("is a FIFO, must be a regular file"));
  unlink(fifo.c_str());
  EXPECT_THAT(error(WriteFile("page-size = 32\ndtype = fp32\n")), HasSubstr("line 2 is not valid"));
  EXPECT_THAT(error(WriteFile("page-size = 32\npage-size = 16\n")), HasSubstr("line 2 is not"));
  EXPECT_THAT(error(WriteFile("page-size = [32]\n")), HasSubstr("page-size must have one value"));
  EXPECT_THAT(error(WriteFile(std::string(100'000, '.'))), HasSubstr("line 1 has 100000 bytes"));
  EXPECT_THAT(error(WriteFile(std::string((1 << 20) + 1, '\n'))), HasSubstr("at most 1048576"));
}

TEST(SecurityWarningsTest, NameReachablePortsAndTheFlagsThatProtectThem) {
  ServerOptions options;
  for (const char* listen : {"127.0.0.1:50051", "localhost:1", "[::1]:1", "127.1.2.3:1", ""}) {
    options.listen = listen;
    EXPECT_THAT(SecurityWarnings(options), IsEmpty()) << listen;
  }
  for (const char* listen : {"0.0.0.0:50051", "[::]:50051", "10.0.0.1:1", "example.org:1"}) {
    options.listen = listen;
    EXPECT_THAT(SecurityWarnings(options),
                ElementsAre(AllOf(HasSubstr(listen), HasSubstr("--tls-cert FILE and --tls-key")),
                            AllOf(HasSubstr(listen), HasSubstr("--api-keys FILE"))));
  }
  options.http_listen = "0.0.0.0:8080";
  options.tls = {.certificate = "c", .key = "k", .client_ca = "ca"};
  EXPECT_THAT(SecurityWarnings(options), IsEmpty());
  options.tls.client_ca = "";
  options.api_keys = "keys.toml";
  EXPECT_THAT(SecurityWarnings(options), IsEmpty());
  options.listen = "127.0.0.1:50051";
  options.tls = {};
  EXPECT_THAT(SecurityWarnings(options),
              ElementsAre(AllOf(HasSubstr("--http-listen 0.0.0.0:8080"), HasSubstr("--tls-cert"))));
}

TEST(FlagsTest, NearestNameHasTheSmallestEditDistance) {
  const std::vector<std::string> names = {"model", "max-model-len", "max-num-seqs"};
  EXPECT_EQ(NearestName("mode", names), "model");
  EXPECT_EQ(NearestName("max-num-seq", names), "max-num-seqs");
  EXPECT_EQ(NearestName("something-else", names), "");
}

}  // namespace
}  // namespace lssar
