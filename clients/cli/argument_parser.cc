#include "clients/cli/argument_parser.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/quote.h"
#include "base/str_cat.h"

namespace lssar::cli {

Argument Argument::ValueName(const std::string& name) const {
  option_->option_text(name);
  return *this;
}

Argument Argument::Group(const std::string& heading) const {
  option_->group(heading);
  return *this;
}

Argument Argument::Help(const std::string& about) const {
  option_->description(about);
  return *this;
}

Argument Argument::Range(int least, int most) const {
  option_->check(CLI::Range(least, most));
  return *this;
}

Argument Argument::Range(int64_t least, int64_t most) const {
  option_->check(CLI::Range(least, most));
  return *this;
}

Argument Argument::Range(double least, double most) const {
  option_->check(CLI::Range(least, most));
  return *this;
}

Argument Argument::OneOf(const std::vector<std::string>& words) const {
  option_->check(CLI::IsMember(words));
  return *this;
}

Argument Argument::Excludes(const std::string& name) const {
  option_->excludes(name);
  return *this;
}

Argument Argument::Environment(const std::string& variable) const {
  option_->envname(variable);
  return *this;
}

Argument Argument::OneValueEach() const {
  option_->allow_extra_args(false);
  return *this;
}

Argument Argument::AnyNumber() const {
  // The least number ends what CLI11 takes here; with TakeAll it asks for none.
  constexpr int kMost = CLI::detail::expected_max_vector_size;
  option_->expected(kMost, kMost)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  return *this;
}

Argument Argument::OptionalValue() const {
  option_->expected(0, 1);
  return *this;
}

std::string Argument::Name() const { return option_->get_name(); }

std::string Argument::TypeName() const { return option_->get_type_name(); }

bool Argument::IsGiven() const { return option_->count() > 0; }

bool Argument::IsOnCommandLine() const {
  if (!IsGiven()) return false;
  const std::string variable = option_->get_envname();
  const char* value = variable.empty() ? nullptr : std::getenv(variable.c_str());
  return value == nullptr || option_->results() != std::vector<std::string>{value};
}

namespace {

template <typename T>
struct ValueOf {
  using Type = T;
};
template <typename T>
struct ValueOf<std::optional<T>> {
  using Type = T;
};
template <typename T>
struct ValueOf<std::vector<T>> {
  using Type = T;
};

// CLI11 reads 010 as 8, and -1 as the largest unsigned number.
template <typename T>
void CheckInteger(CLI::Option* option) {
  if constexpr (std::is_integral_v<T>) {
    option->check([](const std::string& text) -> std::string {
      T value = 0;
      if (absl::SimpleAtoi(text, &value) && StrCat(value) == text) return "";
      return StrCat("is ", Quote(text), "; it must be a whole number in [",
                    std::numeric_limits<T>::min(), ", ", std::numeric_limits<T>::max(), "]");
    });
  }
}

}  // namespace

template <typename T>
Argument ArgumentParser::Add(const std::string& name, T& value, const std::string& about) {
  CLI::Option* const option = app_->add_option(name, value, about);
  CheckInteger<typename ValueOf<T>::Type>(option);
  return Argument(option);
}

template Argument ArgumentParser::Add(const std::string&, std::string&, const std::string&);
template Argument ArgumentParser::Add(const std::string&, int&, const std::string&);
template Argument ArgumentParser::Add(const std::string&, uint64_t&, const std::string&);
template Argument ArgumentParser::Add(const std::string&, float&, const std::string&);
template Argument ArgumentParser::Add(const std::string&, double&, const std::string&);
template Argument ArgumentParser::Add(const std::string&, std::optional<std::string>&,
                                      const std::string&);
template Argument ArgumentParser::Add(const std::string&, std::optional<int>&, const std::string&);
template Argument ArgumentParser::Add(const std::string&, std::optional<int64_t>&,
                                      const std::string&);
template Argument ArgumentParser::Add(const std::string&, std::optional<uint64_t>&,
                                      const std::string&);
template Argument ArgumentParser::Add(const std::string&, std::optional<double>&,
                                      const std::string&);
template Argument ArgumentParser::Add(const std::string&, std::vector<std::string>&,
                                      const std::string&);
template Argument ArgumentParser::Add(const std::string&, std::vector<int>&, const std::string&);

template <typename T>
Argument ArgumentParser::AddFunction(const std::string& name,
                                     const std::function<void(const T&)>& assign,
                                     const std::string& about) {
  CLI::Option* const option = app_->add_option_function<T>(name, assign, about);
  CheckInteger<T>(option);
  return Argument(option);
}

template Argument ArgumentParser::AddFunction(const std::string&,
                                              const std::function<void(const int32_t&)>&,
                                              const std::string&);
template Argument ArgumentParser::AddFunction(const std::string&,
                                              const std::function<void(const float&)>&,
                                              const std::string&);

Argument ArgumentParser::AddRead(const std::string& name,
                                 const std::function<absl::Status(const std::string&)>& read,
                                 const std::string& about) {
  const std::function<void(const std::string&)> assign = [read](const std::string& text) {
    const absl::Status status = read(text);
    if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
  };
  return Argument(app_->add_option_function<std::string>(name, assign, about));
}

Argument ArgumentParser::AddSwitch(const std::string& name, bool& value, const std::string& about) {
  return Argument(app_->add_flag(name, value, about));
}

void ArgumentParser::Footer(const std::string& text) { app_->footer(text); }

std::vector<Argument> ArgumentParser::Arguments() const {
  std::vector<Argument> arguments;
  for (CLI::Option* option : app_->get_options([](CLI::Option*) { return true; })) {
    arguments.emplace_back(option);
  }
  return arguments;
}

void ArgumentParser::TakeAll() {
  app_->set_help_flag();
  app_->prefix_command();
}

std::vector<std::string> ArgumentParser::Taken() const { return app_->remaining(); }

std::string ArgumentParser::Command() const { return app_->get_name(); }

}  // namespace lssar::cli
