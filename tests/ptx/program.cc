#include "tests/ptx/program.h"

#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>

#include "tests/ptx/operations.h"

namespace lssar::ptx {
namespace {

const std::map<std::string, Type>& TypeNames() {
  static const auto* const names = new std::map<std::string, Type>{
      {"pred", Type::kPred}, {"b8", Type::kB8},       {"u8", Type::kU8},   {"s8", Type::kS8},
      {"b16", Type::kB16},   {"u16", Type::kU16},     {"s16", Type::kS16}, {"f16", Type::kF16},
      {"bf16", Type::kBF16}, {"b32", Type::kB32},     {"u32", Type::kU32}, {"s32", Type::kS32},
      {"f32", Type::kF32},   {"f16x2", Type::kF16x2}, {"b64", Type::kB64}, {"u64", Type::kU64},
      {"s64", Type::kS64},   {"f64", Type::kF64}};
  return *names;
}

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\n");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// The operands of a list, at commas outside brackets.
std::vector<std::string> Operands(const std::string& text) {
  std::vector<std::string> operands;
  std::string operand;
  int depth = 0;
  for (const char c : text) {
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      operands.push_back(Trimmed(operand));
      operand.clear();
    } else {
      operand += c;
    }
  }
  if (!Trimmed(operand).empty()) operands.push_back(Trimmed(operand));
  return operands;
}

Opcode PartsOf(const std::string& text) {
  Opcode parts;
  std::string part;
  for (const char c : text + ".") {
    if (c != '.' && c != ':') {
      part += c;
    } else if (!part.empty()) {
      parts.push_back(std::exchange(part, ""));
    }
  }
  return parts;
}

bool IsNameChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '.';
}

std::string Demangled(const std::string& mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  const std::string demangled = status == 0 ? text : mangled;
  std::free(text);
  return demangled;
}

void EraseAll(std::string& text, const std::string& part) {
  for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
}

// A declaration ".param .align 8 .b8 name[72]" or ".local .align 16 .b8 name[8]": its place.
struct Declared {
  std::string name;
  int bytes = 0;
  int align = 1;
};
Declared ParseDeclaration(const std::string& text) {
  std::istringstream words(text);
  Declared declared;
  for (std::string word; words >> word;) {
    if (word == ".align") {
      words >> declared.align;
    } else if (word[0] == '.') {
      const Type type = ParseType(word.substr(1));
      if (type != Type::kNone) declared.bytes = BytesOf(type);
    } else {
      declared.name = word;
    }
  }
  declared.align = std::max(declared.align, declared.bytes);
  if (const size_t bracket = declared.name.find('['); bracket != std::string::npos) {
    declared.bytes *= std::atoi(declared.name.c_str() + bracket + 1);
    declared.name.resize(bracket);
  }
  return declared;
}

// Assembles a kernel and the functions that it calls, one behind the other. A function has one
// parameter of 8 bytes, which is a register of its own: nvcc makes no others for our kernels, and
// no recursion.
class Assembler {
 public:
  explicit Assembler(const std::map<std::string, Function>& functions) : functions_(functions) {}

  Kernel Assemble(const std::string& mangled) {
    kernel_.name = ShortName(Demangled(mangled));
    std::vector<std::string> wanted{mangled};
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (entries_.count(wanted[i]) != 0) continue;
      AddFunction(functions_.at(wanted[i]));
      wanted.insert(wanted.end(), called_.begin(), called_.end());
      called_.clear();
    }
    kernel_.entry = entries_.at(mangled);
    for (const auto& [at, name] : calls_) kernel_.code[at].target = entries_.at(name);
    ShareSlots();
    return std::move(kernel_);
  }

 private:
  using Names = std::map<std::string, int>;

  int NewSlot() { return kernel_.num_slots++; }
  int Constant(uint64_t value) {
    const auto [at, is_new] = constants_.try_emplace(value, 0);
    if (is_new) {
      at->second = NewSlot();
      kernel_.constants.emplace_back(at->second, value);
    }
    return at->second;
  }
  int ParameterOf(const std::string& function) {
    const auto [at, is_new] = parameters_.try_emplace(function, 0);
    if (is_new) at->second = NewSlot();
    return at->second;
  }

  void AddFunction(const Function& function) {
    function_ = &function;
    scopes_.assign(1, {});
    labels_.clear();
    params_.clear();
    locals_.clear();
    call_params_.clear();
    branches_.clear();
    int end = 0;
    for (const std::string& param : Operands(function.params)) {
      const Declared declared = ParseDeclaration(param);
      end = (end + declared.align - 1) / declared.align * declared.align;
      params_[declared.name] = end;
      end += declared.bytes;
    }
    if (function.is_entry) {
      kernel_.param_bytes = end;
    } else if (end != 8) {
      throw Fault(function.name + ": parameters other than one of 8 bytes");
    }
    entries_[function.name] = int(kernel_.code.size());
    if (!function.is_entry) kernel_.functions[int(kernel_.code.size())] = function.name;
    AddBody(function.body);
    Instruction end_of_body;
    end_of_body.flow = Flow::kReturn;
    end_of_body.run = &Nothing;
    end_of_body.text = "end of " + function.name;
    kernel_.code.push_back(end_of_body);
    for (const auto& [at, label] : branches_) {
      if (labels_.count(label) == 0) throw Fault("no label " + label);
      kernel_.code[at].target = labels_[label];
    }
  }

  void AddBody(const std::string& body) {
    for (size_t at = 0; at < body.size();) {
      const char c = body[at];
      if (std::isspace(static_cast<unsigned char>(c)) != 0) {
        ++at;
      } else if (c == '{') {
        scopes_.emplace_back();
        ++at;
      } else if (c == '}') {
        if (scopes_.size() > 1) scopes_.pop_back();
        ++at;
      } else {
        size_t end = at;
        while (end < body.size() && IsNameChar(body[end])) ++end;
        if (end > at && body[end] == ':' && body[end + 1] != ':') {
          labels_[body.substr(at, end - at)] = int(kernel_.code.size());
          at = end + 1;
          continue;
        }
        end = body.find(';', at);
        if (end == std::string::npos) return;
        std::string statement = body.substr(at, end - at);
        for (char& character : statement) {
          if (character == '\n' || character == '\t') character = ' ';
        }
        AddStatement(Trimmed(statement));
        at = end + 1;
      }
    }
  }

  void AddStatement(const std::string& text) {
    const auto starts = [&](const char* with) { return text.rfind(with, 0) == 0; };
    if (starts(".reg")) return DeclareRegisters(text);
    if (starts(".local")) {
      const Declared declared = ParseDeclaration(text);
      kernel_.local_bytes = (kernel_.local_bytes + 15) / 16 * 16;
      locals_[declared.name] = kernel_.local_bytes;
      kernel_.local_bytes += declared.bytes;
      return;
    }
    if (starts(".param")) {
      call_params_[ParseDeclaration(text).name] = NewSlot();
      return;
    }
    if (text[0] != '.') AddInstruction(text);  // .pragma, .loc
  }

  // ".reg .b32 %r<9>" or ".reg .pred p"
  void DeclareRegisters(const std::string& text) {
    std::istringstream words(text);
    std::string word, names;
    words >> word >> word;
    std::getline(words, names);
    for (const std::string& name : Operands(names)) {
      const size_t count_at = name.find('<');
      if (count_at == std::string::npos) {
        scopes_.back()[name] = NewSlot();
        continue;
      }
      for (int i = 0; i < std::atoi(name.c_str() + count_at + 1); ++i) {
        scopes_.back()[name.substr(0, count_at) + std::to_string(i)] = NewSlot();
      }
    }
  }

  // ---- Operands

  int FindRegister(const std::string& name) const {  // -1: none
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto at = scope->find(name); at != scope->end()) return at->second;
    }
    return -1;
  }

  [[noreturn]] void Unknown(const std::string& what) const {
    throw Fault(what + " in: " + in_.text);
  }

  // The slot of an operand that is read.
  int Value(const std::string& name, Type type) {
    if (const int slot = FindRegister(name); slot >= 0) return slot;
    if (const auto at = params_.find(name); at != params_.end())
      return Constant(uint64_t(at->second));
    if (const auto at = locals_.find(name); at != locals_.end())
      return Constant(uint64_t(at->second));
    if (name.find("shared_memory") != std::string::npos) return Constant(kSharedBase);
    if (name.rfind("0f", 0) == 0 || name.rfind("0d", 0) == 0) {
      return Constant(std::strtoull(name.c_str() + 2, nullptr, 16));
    }
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0 && name[0] != '-') {
      Unknown("operand " + name);
    }
    const bool is_negative = name[0] == '-';
    const uint64_t magnitude = std::strtoull(name.c_str() + (is_negative ? 1 : 0), nullptr, 0);
    const uint64_t value = is_negative ? 0 - magnitude : magnitude;
    if (type == Type::kPred) return Constant(value & 1);
    const int bytes = BytesOf(type);
    return Constant(type == Type::kNone || bytes == 8 ? value
                                                      : value & ((1ull << (8 * bytes)) - 1));
  }
  // The slot of an operand that is written; -1 for "_".
  int Target(const std::string& name) {
    if (name == "_") return -1;
    const int slot = FindRegister(name);
    if (slot < 0) Unknown("operand " + name);
    return slot;
  }
  static std::vector<std::string> Elements(const std::string& operand) {
    if (operand[0] != '{') return {operand};
    return Operands(operand.substr(1, operand.size() - 2));
  }
  // "[%rd1+16]": the slot of the address, and its offset in in_. Parameters of a call: kNone.
  enum class AddressOf { kMemory, kCallParameter };
  AddressOf Address(const std::string& operand, int* slot, int64_t* offset) {
    std::string name = operand.substr(1, operand.size() - 2);
    *offset = 0;
    if (const size_t plus = name.find('+'); plus != std::string::npos) {
      *offset = std::atoll(name.c_str() + plus + 1);
      name.resize(plus);
    }
    name = Trimmed(name);
    if (const auto at = call_params_.find(name); at != call_params_.end()) {
      *slot = at->second;
      return AddressOf::kCallParameter;
    }
    *slot = Value(name, Type::kU64);
    return AddressOf::kMemory;
  }
  int PlainAddress(const std::string& operand) {
    int slot = -1;
    int64_t offset = 0;
    Address(operand, &slot, &offset);
    if (offset != 0) Unknown("an offset");
    return slot;
  }

  void Add(int slot) {
    if (in_.num_slots == kMaxOperands) Unknown("too many operands");
    in_.slots[in_.num_slots++] = slot;
  }
  void Write(const std::string& operand) {
    Add(Target(operand));
    in_.num_written = in_.num_slots;
  }
  void Read(const std::string& operand, Type type) { Add(Value(operand, type)); }

  // ---- Instructions

  void AddInstruction(std::string text) {
    in_ = {};
    in_.text = text;
    if (text[0] == '@') {
      in_.is_guard_negated = text[1] == '!';
      const size_t first = in_.is_guard_negated ? 2 : 1, end = text.find(' ');
      in_.guard = FindRegister(text.substr(first, end - first));
      if (in_.guard < 0) Unknown("predicate");
      text = Trimmed(text.substr(end));
    }
    const size_t end = std::min(text.find(' '), text.size());
    opcode_ = PartsOf(text.substr(0, end));
    operands_ = Operands(text.substr(end));
    for (size_t i = 1; i < opcode_.size(); ++i) {
      const Type type = ParseType(opcode_[i]);
      if (type == Type::kNone) continue;
      if (in_.type == Type::kNone) in_.type = type;
      in_.from = type;  // the last one
    }
    in_.space = Has(opcode_, "param")    ? Space::kParam
                : Has(opcode_, "global") ? Space::kGlobal
                : Has(opcode_, "shared") ? Space::kShared
                : Has(opcode_, "local")  ? Space::kLocal
                                         : Space::kGeneric;
    if (!IsKnownForm(opcode_)) Unknown("an instruction that is not known");
    int num_from = 0;
    if (const RunFn run = PlainOperation(opcode_, in_.type, &num_from); run != nullptr) {
      AddPlain(run, num_from);
    } else {
      AddOther();
    }
    if (in_.run == nullptr) Unknown("an instruction that is not known");
    kernel_.code.push_back(in_);
  }

  void AddPlain(RunFn run, int num_from) {
    if (operands_.size() != size_t(num_from) + 1) Unknown("number of operands");
    const std::string& name = opcode_[0];
    in_.run = run;
    Write(operands_[0]);
    for (int i = 1; i <= num_from; ++i) {
      const bool is_amount = (name == "shl" || name == "shr") ? i == 2 : name == "bfi" && i > 2;
      Read(operands_[size_t(i)], is_amount                  ? Type::kU32
                                 : name == "selp" && i == 3 ? Type::kPred
                                                            : in_.type);
    }
  }

  void AddOther() {
    const std::string& name = opcode_[0];
    if (name == "mov") return AddMove();
    if (name == "setp") return AddSetPredicate();
    if (name == "cvt") return AddConvert();
    if (name == "cvta") {
      in_.run = Has(opcode_, "to") ? &FromGeneric : &ToGeneric;
      Write(operands_[0]);
      Read(operands_[1], Type::kU64);
    } else if (name == "mapa") {
      in_.run = &MapToRank;
      Write(operands_[0]);
      Read(operands_[1], Type::kU64);
      Read(operands_[2], Type::kU32);
    } else if (name == "ld" || name == "st") {
      AddLoadOrStore(name == "ld");
    } else if (name == "atom" || name == "red") {
      AddAtomic(name == "atom");
    } else if (name == "membar" || name == "fence") {
      in_.run = &Nothing;
    } else if (name == "trap") {
      in_.run = &TrapHere;
    } else if (name == "griddepcontrol") {
      in_.run = Has(opcode_, "wait") ? &WaitForPrevious : &Nothing;
    } else if (name == "bar" || name == "barrier") {
      AddBarrier();
    } else if (name == "shfl" || name == "vote" || name == "mma" || name == "ldmatrix") {
      AddCollective();
    } else if (name == "cp") {
      AddCopy();
    } else if (name == "mbarrier") {
      AddByteBarrier();
    } else if (name == "bra") {
      in_.run = &Nothing;
      in_.flow = Flow::kBranch;
      branches_.emplace_back(kernel_.code.size(), operands_[0]);
    } else if (name == "ret" || name == "exit") {
      in_.run = &Nothing;
      in_.flow = Flow::kReturn;
    } else if (name == "call") {
      AddCall();
    }
  }

  void AddMove() {
    static const auto* const kSpecial =
        new std::map<std::string, int>{{"%tid.x", kTidX},
                                       {"%ctaid.x", kCtaidX},
                                       {"%ctaid.y", kCtaidY},
                                       {"%cluster_ctarank", kClusterRank},
                                       {"%cluster_nctarank", kClusterBlocks},
                                       {"%laneid", kLaneId}};
    const std::vector<std::string> to = Elements(operands_[0]), from = Elements(operands_[1]);
    for (const std::string& element : to) Write(element);
    if (const auto special = kSpecial->find(from[0]); special != kSpecial->end()) {
      in_.run = &ReadSpecial;
      in_.mode = special->second;
      return;
    }
    for (const std::string& element : from) {
      Read(element, from.size() > 1 ? Type::kNone : in_.type);
    }
    in_.run = to.size() > 1 ? &UnpackVector : from.size() > 1 ? &PackVector : &Move;
    in_.count = int(std::max(to.size(), from.size()));
  }

  void AddSetPredicate() {
    const int comparison = ParseComparison(opcode_[1]);
    if (comparison < 0 || operands_[0].find('|') != std::string::npos) Unknown("comparison");
    const int combination = Has(opcode_, "and")   ? kAnd
                            : Has(opcode_, "or")  ? kOr
                            : Has(opcode_, "xor") ? kXor
                                                  : kAlone;
    in_.run = &SetPredicate;
    in_.mode = comparison + 16 * combination;
    Write(operands_[0]);
    Read(operands_[1], in_.type);
    Read(operands_[2], in_.type);
    if (combination != kAlone) Read(operands_[3], Type::kPred);
  }

  void AddConvert() {
    in_.run = &Convert;
    in_.mode = Has(opcode_, "rzi")   ? kToIntTowardsZero
               : Has(opcode_, "rni") ? kToIntNearest
               : Has(opcode_, "rn")  ? kNearest
                                     : kAsIs;
    in_.saturates = Has(opcode_, "sat");
    Write(operands_[0]);
    for (size_t i = 1; i < operands_.size(); ++i) Read(operands_[i], in_.from);
  }

  void AddLoadOrStore(bool is_load) {
    const std::vector<std::string> elements = Elements(operands_[is_load ? 0 : 1]);
    const std::string& address = operands_[is_load ? 1 : 0];
    in_.count = int(elements.size());
    if (in_.space == Space::kParam && is_load && !function_->is_entry) {
      in_.run = &Move;
      Write(elements[0]);
      Add(ParameterOf(function_->name));
      return;
    }
    int slot = -1;
    if (Address(address, &slot, &in_.offset) == AddressOf::kCallParameter) {
      if (is_load) Unknown("a result of a call");
      in_.run = &Move;
      Add(slot);
      in_.num_written = 1;
      Read(elements[0], in_.type);
      return;
    }
    if (is_load) {
      in_.run = &Load;
      for (const std::string& element : elements) Write(element);
      Add(slot);
    } else {
      in_.run = &Store;
      Add(slot);
      for (const std::string& element : elements) Read(element, in_.type);
    }
  }

  void AddAtomic(bool has_result) {
    in_.run = &Atomic;
    in_.mode = Has(opcode_, "or") ? 1 : 0;
    Add(has_result ? Target(operands_[0]) : -1);
    in_.num_written = has_result ? 1 : 0;
    int slot = -1;
    Address(operands_[has_result ? 1 : 0], &slot, &in_.offset);
    Add(slot);
    Read(operands_[has_result ? 2 : 1], in_.type);
  }

  void AddBarrier() {
    in_.run = &Nothing;
    if (Has(opcode_, "warp")) {
      in_.run = &WarpBarrier;
      in_.flow = Flow::kCollective;
    } else if (Has(opcode_, "cluster")) {
      in_.flow = Has(opcode_, "arrive") ? Flow::kClusterArrive : Flow::kClusterWait;
    } else if (Has(opcode_, "red")) {
      in_.flow = Flow::kBlockBarrier;
      in_.mode = 1;
      Write(operands_[0]);
      Read(operands_[2], Type::kPred);
    } else {
      if (operands_.size() != 1 || operands_[0] != "0") Unknown("barrier");
      in_.flow = Flow::kBlockBarrier;
    }
  }

  void AddCollective() {
    in_.flow = Flow::kCollective;
    const std::string& name = opcode_[0];
    if (name == "shfl") {
      in_.run = &ShuffleLanes;
      in_.mode = Has(opcode_, "bfly") ? 0 : 1;
      const size_t bar = operands_[0].find('|');
      Write(operands_[0].substr(0, bar));
      if (bar == std::string::npos) {
        Add(-1);
      } else {
        Write(operands_[0].substr(bar + 1));
      }
      for (size_t i = 1; i < 4; ++i) Read(operands_[i], Type::kB32);
    } else if (name == "vote") {
      in_.run = &BallotLanes;
      Write(operands_[0]);
      Read(operands_[1], Type::kPred);
    } else if (name == "mma") {
      in_.run = Has(opcode_, "m16n8k32") ? &Multiply16x8x32 : &Multiply16x8x16;
      in_.mode = Has(opcode_, "bf16") ? 1 : 0;
      if (operands_[0] != operands_[3]) Unknown("c other than d");
      for (const std::string& element : Elements(operands_[0])) Write(element);
      for (size_t i = 1; i < 3; ++i) {
        for (const std::string& element : Elements(operands_[i])) Read(element, Type::kB32);
      }
    } else {
      in_.run = &LoadMatrices;
      for (const std::string& element : Elements(operands_[0])) Write(element);
      int slot = -1;
      Address(operands_[1], &slot, &in_.offset);
      Add(slot);
    }
  }

  void AddCopy() {
    if (Has(opcode_, "bulk")) {
      in_.run = &StartBulkCopy;
      Add(PlainAddress(operands_[0]));
      Add(PlainAddress(operands_[1]));
      Read(operands_[2], Type::kU32);
      Add(PlainAddress(operands_[3]));
    } else if (Has(opcode_, "commit_group")) {
      in_.run = &CommitGroup;
    } else if (Has(opcode_, "wait_group")) {
      in_.run = &WaitGroups;
      in_.offset = std::atoi(operands_[0].c_str());
    } else {
      in_.run = &StartCopy;
      int slot = -1;
      Address(operands_[0], &slot, &in_.offset);
      Add(slot);
      Add(PlainAddress(operands_[1]));
      in_.count = std::atoi(operands_[2].c_str());
      if (operands_.size() > 3) Read(operands_[3], Type::kU32);
    }
  }

  void AddByteBarrier() {
    if (Has(opcode_, "init") || Has(opcode_, "expect_tx")) {
      in_.run = Has(opcode_, "init") ? &InitByteBarrier : &ExpectBytes;
      Add(PlainAddress(operands_[0]));
      Read(operands_[1], Type::kU32);
    } else if (Has(opcode_, "try_wait")) {
      in_.run = &TestByteBarrier;
      in_.flow = Flow::kRetry;
      Write(operands_[0]);
      Add(PlainAddress(operands_[1]));
      Read(operands_[2], Type::kU32);
    } else if (Has(opcode_, "arrive")) {
      in_.run = &ArriveAtByteBarrier;
      Add(PlainAddress(operands_[1]));
    }
  }

  // "call.uni NAME, (param0)": moves the parameter, then jumps.
  void AddCall() {
    const std::string& name = operands_[0];
    if (operands_.size() != 2 || functions_.count(name) == 0) Unknown("call");
    Instruction move = in_;
    move.run = &Move;
    move.num_written = 1;
    move.slots[move.num_slots++] = ParameterOf(name);
    move.slots[move.num_slots++] =
        call_params_.at(Trimmed(operands_[1].substr(1, operands_[1].size() - 2)));
    kernel_.code.push_back(move);
    in_.run = &Nothing;
    in_.flow = Flow::kCall;
    called_.push_back(name);
    calls_.emplace_back(kernel_.code.size(), name);
  }

  // Registers that live inside one stretch without jumps share slots: a warp's registers then fit
  // in the host's cache.
  void ShareSlots() {
    std::vector<Instruction>& code = kernel_.code;
    std::vector<char> starts_stretch(code.size() + 1);
    for (const auto& [name, entry] : entries_) starts_stretch[size_t(entry)] = 1;
    for (size_t i = 0; i < code.size(); ++i) {
      const Flow flow = code[i].flow;
      if (flow != Flow::kBranch && flow != Flow::kReturn && flow != Flow::kCall) continue;
      starts_stretch[i + 1] = 1;
      if (code[i].target >= 0) starts_stretch[size_t(code[i].target)] = 1;
    }
    constexpr int kUnseen = -1, kManyStretches = -2;
    std::vector<int> home(size_t(kernel_.num_slots), kUnseen);
    std::vector<size_t> last_use(size_t(kernel_.num_slots));
    int stretch = -1;
    const auto touch = [&](int slot, size_t at, bool is_whole_write) {
      if (slot < 0) return;
      int& place = home[size_t(slot)];
      if (place == kUnseen && is_whole_write) {
        place = stretch;
      } else if (place != stretch) {
        place = kManyStretches;
      }
      last_use[size_t(slot)] = at;
    };
    for (size_t i = 0; i < code.size(); ++i) {
      if (starts_stretch[i] != 0) ++stretch;
      const Instruction& in = code[i];
      touch(in.guard, i, false);
      for (int s = in.num_written; s < in.num_slots; ++s) touch(in.slots[s], i, false);
      // A guarded instruction keeps the old value in some lanes; an MMA reads what it writes.
      const bool is_whole_write = in.guard < 0 && in.run != &Multiply16x8x16;
      for (int s = 0; s < in.num_written; ++s) touch(in.slots[s], i, is_whole_write);
    }
    for (const auto& [slot, value] : kernel_.constants) home[size_t(slot)] = kManyStretches;

    std::vector<int> shared(home.size(), -1);
    int num_fixed = 0;
    for (size_t slot = 0; slot < home.size(); ++slot) {
      if (home[slot] == kManyStretches) shared[slot] = num_fixed++;
    }
    std::vector<std::vector<int>> dying(code.size());
    for (size_t slot = 0; slot < home.size(); ++slot) {
      if (home[slot] >= 0) dying[last_use[slot]].push_back(int(slot));
    }
    std::vector<int> free_slots;
    int num_taken = 0, most_taken = 0;
    for (size_t i = 0; i < code.size(); ++i) {
      if (starts_stretch[i] != 0) {
        free_slots.clear();
        num_taken = 0;
      }
      for (int s = 0; s < code[i].num_written; ++s) {
        const int slot = code[i].slots[s];
        if (slot < 0 || home[size_t(slot)] < 0 || shared[size_t(slot)] >= 0) continue;
        if (free_slots.empty()) {
          shared[size_t(slot)] = num_fixed + num_taken++;
          most_taken = std::max(most_taken, num_taken);
        } else {
          shared[size_t(slot)] = free_slots.back();
          free_slots.pop_back();
        }
      }
      for (const int slot : dying[i]) free_slots.push_back(shared[size_t(slot)]);
    }
    for (Instruction& in : code) {
      if (in.guard >= 0) in.guard = shared[size_t(in.guard)];
      for (int s = 0; s < in.num_slots; ++s) {
        if (in.slots[s] >= 0) in.slots[s] = shared[size_t(in.slots[s])];
      }
    }
    for (auto& [slot, value] : kernel_.constants) slot = shared[size_t(slot)];
    kernel_.num_slots = num_fixed + most_taken;
  }

  const std::map<std::string, Function>& functions_;
  Kernel kernel_;
  std::map<uint64_t, int> constants_;
  Names entries_, parameters_;  // of functions
  std::vector<std::string> called_;
  std::vector<std::pair<size_t, std::string>> calls_;

  // The state of the function that is being added.
  const Function* function_ = nullptr;
  std::vector<Names> scopes_;  // registers
  Names labels_, params_, locals_, call_params_;
  std::vector<std::pair<size_t, std::string>> branches_;
  // The instruction that is being added.
  Instruction in_;
  Opcode opcode_;
  std::vector<std::string> operands_;
};

}  // namespace

Type ParseType(const std::string& name) {
  const auto at = TypeNames().find(name);
  return at == TypeNames().end() ? Type::kNone : at->second;
}

int BytesOf(Type type) {
  switch (type) {
    case Type::kPred:
    case Type::kB8:
    case Type::kU8:
    case Type::kS8: return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBF16: return 2;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64: return 8;
    default: return 4;
  }
}

bool IsSigned(Type type) {
  return type == Type::kS8 || type == Type::kS16 || type == Type::kS32 || type == Type::kS64;
}

bool IsFloat(Type type) {
  return type == Type::kF16 || type == Type::kBF16 || type == Type::kF32 || type == Type::kF64;
}

std::string ShortName(const std::string& name) {
  std::string text = name.rfind("_Z", 0) == 0 ? Demangled(name) : name;
  for (size_t at; (at = text.find("cuda_emulated")) != std::string::npos;) {
    text.replace(at, std::string("cuda_emulated").size(), "cuda");
  }
  if (const size_t at = text.rfind("(lssar::"); at != std::string::npos) text.resize(at);
  EraseAll(text, "(anonymous namespace)::");
  EraseAll(text, "lssar::cuda::");
  if (text.rfind("void ", 0) == 0) text.erase(0, 5);
  return text;
}

void Module::Add(const std::string& text) {
  std::string plain;  // without comments
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    plain += line.substr(0, line.find("//")) + "\n";
  }
  for (size_t at = 0;;) {
    const size_t entry = plain.find(".entry", at), function = plain.find(".func", at);
    const size_t first = std::min(entry, function);
    if (first == std::string::npos) return;
    const bool is_entry = first == entry;
    const size_t open = plain.find('(', first), close = plain.find(')', open);
    size_t body = close + 1;
    while (body < plain.size() && plain[body] != '{' && plain[body] != ';') ++body;
    if (close == std::string::npos || body >= plain.size()) throw Fault("PTX that ends early");
    at = body + 1;
    if (plain[body] == ';') continue;  // a declaration
    int depth = 1;
    for (; depth > 0 && at < plain.size(); ++at) {
      depth += plain[at] == '{' ? 1 : plain[at] == '}' ? -1 : 0;
    }
    const size_t name_at = first + (is_entry ? 6 : 5);
    const std::string name = Trimmed(plain.substr(name_at, open - name_at));
    functions_[name] = {name, plain.substr(open + 1, close - open - 1),
                        plain.substr(body + 1, at - body - 2), is_entry};
    if (is_entry) by_short_name_[ShortName(name)] = name;
  }
}

std::string Module::Find(const std::string& short_name) const {
  const auto at = by_short_name_.find(short_name);
  return at == by_short_name_.end() ? "" : at->second;
}

std::vector<std::string> Module::ShortNames() const {
  std::vector<std::string> names;
  for (const auto& [name, mangled] : by_short_name_) names.push_back(name);
  return names;
}

Kernel Module::Assemble(const std::string& mangled) const {
  return Assembler(functions_).Assemble(mangled);
}

}  // namespace lssar::ptx
