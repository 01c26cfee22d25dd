// The arguments of a command, without CLI11's headers: they take a file that includes them seven
// seconds more to compile. main.cc parses; this file's functions declare.
#ifndef LSSAR_CLIENTS_CLI_ARGUMENT_PARSER_H_
#define LSSAR_CLIENTS_CLI_ARGUMENT_PARSER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lssar::cli {

// One argument. Each method changes it and returns it.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument ValueName(const std::string& name) const;
  Argument Group(const std::string& heading) const;
  Argument Help(const std::string& about) const;
  Argument Range(int least, int most) const;
  Argument Range(int64_t least, int64_t most) const;
  Argument Range(double least, double most) const;
  Argument OneOf(const std::vector<std::string>& words) const;
  Argument Excludes(const std::string& name) const;
  Argument Environment(const std::string& variable) const;
  Argument OneValueEach()
      const;  // of a repeatable flag: what follows its value is another argument
  // What stands without a flag: any number of values, each as it is. Without this CLI11 reads
  // "[a,b]" as two.
  Argument AnyNumber() const;
  Argument OptionalValue() const;  // the flag may stand alone

  std::string Name() const;
  // The name of its values, where AddModelFlags has set one.
  std::string TypeName() const;
  bool IsGiven() const;
  // True if the command line, and not the environment, sets it.
  bool IsOnCommandLine() const;

  bool operator==(const Argument&) const = default;

 private:
  CLI::Option* option_;
};

// `app` and the values must outlive the parsing.
class ArgumentParser {
 public:
  explicit ArgumentParser(CLI::App* app) : app_(app) {}

  // `name`: "--flag", or "word" for what stands without a flag. `value`: a string, a number, an
  // optional of one, or a vector of strings or ids.
  template <typename T>
  Argument Add(const std::string& name, T& value, const std::string& about);
  // Calls `assign` with each value. T: int32_t or float.
  template <typename T>
  Argument AddFunction(const std::string& name, const std::function<void(const T&)>& assign,
                       const std::string& about);
  // Calls `read` with each value; an error ends the parsing with its message.
  Argument AddRead(const std::string& name,
                   const std::function<absl::Status(const std::string&)>& read,
                   const std::string& about);
  Argument AddSwitch(const std::string& name, bool& value, const std::string& about);
  // At the end of the help.
  void Footer(const std::string& text);

  // All arguments so far, in order.
  std::vector<Argument> Arguments() const;

  // Takes every argument as it is, --help too.
  void TakeAll();
  std::vector<std::string> Taken() const;

  std::string Command() const;
  CLI::App* App() const { return app_; }

 private:
  CLI::App* app_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_ARGUMENT_PARSER_H_
