#include "tests/ptx/operations.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/float_bits.h"
#include "tests/ptx/machine.h"

namespace lssar::ptx {
namespace {

template <typename T>
T As(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
template <typename T>
uint64_t BitsOf(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

template <typename F>
void ForLanes(uint32_t lanes, const F& f) {
  if (lanes == kAllLanes) {  // a loop that the compiler can vectorise
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

// kF of each lane's operands, as T.
template <typename T, auto kF>
void Map1(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t* const a = w.Register(in.slots[1]);
  ForLanes(lanes, [=](int l) { to[l] = BitsOf(T(kF(As<T>(a[l])))); });
}
template <typename T, auto kF>
void Map2(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const a = w.Register(in.slots[1]), *const b = w.Register(in.slots[2]);
  ForLanes(lanes, [=](int l) { to[l] = BitsOf(T(kF(As<T>(a[l]), As<T>(b[l])))); });
}
template <typename T, auto kF>
void Map3(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const a = w.Register(in.slots[1]), *const b = w.Register(in.slots[2]),
                        *const c = w.Register(in.slots[3]);
  ForLanes(lanes, [=](int l) { to[l] = BitsOf(T(kF(As<T>(a[l]), As<T>(b[l]), As<T>(c[l])))); });
}
// kF of raw bits.
template <auto kF>
void MapBits2(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const a = w.Register(in.slots[1]), *const b = w.Register(in.slots[2]);
  ForLanes(lanes, [=](int l) { to[l] = kF(a[l], b[l]); });
}

// The operation on the type: floats, and integers without (Wrapping) or with (Signed) a sign.
template <auto kF>
RunFn Floating2(Type type) {
  if (type == Type::kF32) return &Map2<float, kF>;
  return type == Type::kF64 ? &Map2<double, kF> : nullptr;
}
template <auto kF>
RunFn Floating1(Type type) {
  if (type == Type::kF32) return &Map1<float, kF>;
  return type == Type::kF64 ? &Map1<double, kF> : nullptr;
}
template <auto kF>
RunFn Wrapping2(Type type) {
  if (type == Type::kPred) return &Map2<uint8_t, kF>;
  switch (BytesOf(type)) {
    case 2: return &Map2<uint16_t, kF>;
    case 4: return &Map2<uint32_t, kF>;
    case 8: return &Map2<uint64_t, kF>;
    default: return nullptr;
  }
}
template <auto kF>
RunFn Wrapping1(Type type) {
  switch (BytesOf(type)) {
    case 2: return &Map1<uint16_t, kF>;
    case 4: return &Map1<uint32_t, kF>;
    case 8: return &Map1<uint64_t, kF>;
    default: return nullptr;
  }
}
template <auto kF>
RunFn Signed2(Type type) {
  switch (type) {
    case Type::kS16: return &Map2<int16_t, kF>;
    case Type::kS32: return &Map2<int32_t, kF>;
    case Type::kS64: return &Map2<int64_t, kF>;
    default: return Wrapping2<kF>(type);
  }
}

// The maximum or minimum of PTX: a number where one operand is NaN; -0 is less than +0.
template <typename T>
T Largest(T a, T b) {
  if (a != a || b != b) return a == a ? a : b == b ? b : std::numeric_limits<T>::quiet_NaN();
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
constexpr auto kMaxOf = [](auto a, auto b) { return Largest(a, b); };
constexpr auto kMinOf = [](auto a, auto b) { return decltype(a)(-Largest(-a, -b)); };

template <typename T>
T Quotient(T a, T b) {
  return b == 0 ? T(-1) : T(a / b);
}

// Shifts clamp the amount, which is 32 bits whatever the type.
template <typename T, bool kLeft>
void Shift(Warp& w, const Instruction& in, uint32_t lanes) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const a = w.Register(in.slots[1]), *const b = w.Register(in.slots[2]);
  ForLanes(lanes, [=](int l) {
    const uint32_t by = uint32_t(b[l]);
    const T value = As<T>(a[l]);
    T shifted;
    if constexpr (kLeft) {
      shifted = by >= kBits ? T(0) : T(value << by);
    } else if constexpr (std::is_signed_v<T>) {
      shifted = T(value >> std::min(by, kBits - 1));
    } else {
      shifted = by >= kBits ? T(0) : T(value >> by);
    }
    to[l] = BitsOf(shifted);
  });
}
template <bool kLeft>
RunFn ShiftOf(Type type) {
  switch (type) {
    case Type::kS16: return &Shift<int16_t, kLeft>;
    case Type::kS32: return &Shift<int32_t, kLeft>;
    case Type::kS64: return &Shift<int64_t, kLeft>;
    default: break;
  }
  switch (BytesOf(type)) {
    case 2: return &Shift<uint16_t, kLeft>;
    case 4: return &Shift<uint32_t, kLeft>;
    default: return &Shift<uint64_t, kLeft>;
  }
}

template <typename T>
void InsertField(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const a = w.Register(in.slots[1]), *const b = w.Register(in.slots[2]),
                        *const first = w.Register(in.slots[3]),
                        *const length = w.Register(in.slots[4]);
  ForLanes(lanes, [=](int l) {
    T field = T(b[l]);
    for (uint32_t i = 0; i < (length[l] & 255); ++i) {
      const uint32_t at = uint32_t(first[l] & 255) + i;
      if (at >= 8 * sizeof(T)) break;
      field = T((field & ~(T(1) << at)) | (T(a[l]) >> i & 1) << at);
    }
    to[l] = field;
  });
}

uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 15;
    uint8_t byte = uint8_t(bytes >> (8 * (from & 7)));
    if ((from & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    chosen |= uint32_t{byte} << (8 * i);
  }
  return chosen;
}

// The approximations: exactly rounded, without subnormals, as in kernels/cuda/emulation.
float FlushTiny(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
float ApproxPowerOfTwo(float x) { return std::fabs(FlushTiny(std::exp2(x))); }
float ApproxLogarithm(float x) { return std::log2(std::fabs(x) < 0x1p-126f ? 0.0f : x); }
float ApproxInverseRoot(float x) { return float(1.0 / std::sqrt(double(x))); }

// kF of each lane's x, as Options::approximation_seed has it: up to 2 ULP off, by seed and x, as
// hardware is. Exact at `kExact`, where the kernels need it and the probe of a device checks it.
template <auto kF, float kExact>
void Approximate(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t* const a = w.Register(in.slots[1]);
  const uint32_t seed = uint32_t(w.machine->options.approximation_seed);
  ForLanes(lanes, [=](int l) {
    const float x = As<float>(a[l]), y = kF(x);
    if (seed == 0 || x == kExact || !std::isnormal(y)) {
      to[l] = BitsOf(y);
      return;
    }
    uint32_t hash = (std::bit_cast<uint32_t>(x) ^ seed * 0x9E3779B9u) * 0x85EBCA6Bu;
    hash ^= hash >> 15;
    const uint32_t ulps = hash % 5 - 2;
    const float moved = std::bit_cast<float>(std::bit_cast<uint32_t>(y) + ulps);
    to[l] = BitsOf(std::isnormal(moved) ? moved : y);
  });
}

float MulAddDown(float a, float b, float c) {
  const int before = std::fegetround();
  std::fesetround(FE_DOWNWARD);
  volatile float x = a, y = b, z = c;
  const volatile float sum = std::fma(x, y, z);
  std::fesetround(before);
  return sum;
}

uint64_t SubtractPairs(uint64_t a, uint64_t b) {
  uint64_t pair = 0;
  for (int i = 0; i < 32; i += 16) {
    const float difference = FloatFromF16(uint16_t(a >> i)) - FloatFromF16(uint16_t(b >> i));
    pair |= uint64_t{F16FromFloat(difference)} << i;
  }
  return pair;
}

void Select(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const a = w.Register(in.slots[1]), *const b = w.Register(in.slots[2]),
                        *const p = w.Register(in.slots[3]);
  ForLanes(lanes, [=](int l) { to[l] = (p[l] & 1) != 0 ? a[l] : b[l]; });
}

}  // namespace

bool Has(const Opcode& opcode, const char* part) {
  return std::find(opcode.begin(), opcode.end(), part) != opcode.end();
}

RunFn PlainOperation(const Opcode& opcode, Type type, int* num_from) {
  const std::string& name = opcode[0];
  const bool is_float = IsFloat(type);
  const int bytes = BytesOf(type);
  *num_from = 2;
  if (name == "add") {
    constexpr auto kAdd = [](auto a, auto b) { return a + b; };
    return is_float ? Floating2<kAdd>(type) : Wrapping2<kAdd>(type);
  }
  if (name == "sub") {
    constexpr auto kSub = [](auto a, auto b) { return a - b; };
    if (type == Type::kF16x2)
      return &MapBits2<[](uint64_t a, uint64_t b) { return SubtractPairs(a, b); }>;
    return is_float ? Floating2<kSub>(type) : Wrapping2<kSub>(type);
  }
  if (name == "mul") {
    if (Has(opcode, "wide")) {
      switch (type) {
        case Type::kS32:
          return &MapBits2<[](uint64_t a, uint64_t b) {
            return uint64_t(int64_t{int32_t(a)} * int64_t{int32_t(b)});
          }>;
        case Type::kU32:
          return &MapBits2<[](uint64_t a, uint64_t b) {
            return uint64_t{uint32_t(a)} * uint64_t{uint32_t(b)};
          }>;
        case Type::kS16:
          return &MapBits2<[](uint64_t a, uint64_t b) {
            return uint64_t{uint32_t(int32_t{int16_t(a)} * int32_t{int16_t(b)})};
          }>;
        case Type::kU16:
          return &MapBits2<[](uint64_t a, uint64_t b) {
            return uint64_t{uint32_t{uint16_t(a)} * uint32_t{uint16_t(b)}};
          }>;
        default: return nullptr;
      }
    }
    if (Has(opcode, "hi")) {
      if (type == Type::kS32) {
        return &Map2<int32_t, [](int32_t a, int32_t b) { return ((int64_t{a} * b) >> 32); }>;
      }
      return &Map2<uint32_t, [](uint32_t a, uint32_t b) { return ((uint64_t{a} * b) >> 32); }>;
    }
    if (is_float) return Floating2<[](auto a, auto b) { return a * b; }>(type);
    return Wrapping2<[](auto a, auto b) { return uint64_t{a} * b; }>(type);
  }
  if (name == "div") {
    if (is_float) return Floating2<[](auto a, auto b) { return a / b; }>(type);
    return Signed2<[](auto a, auto b) { return Quotient(a, b); }>(type);
  }
  if (name == "rem") return Signed2<[](auto a, auto b) { return b == 0 ? a : a % b; }>(type);
  if (name == "min") {
    if (is_float) return Floating2<kMinOf>(type);
    return Signed2<[](auto a, auto b) { return a < b ? a : b; }>(type);
  }
  if (name == "max") {
    if (is_float) return Floating2<kMaxOf>(type);
    return Signed2<[](auto a, auto b) { return (a > b) ? a : b; }>(type);
  }
  if (name == "and") return Wrapping2<[](auto a, auto b) { return a & b; }>(type);
  if (name == "or") return Wrapping2<[](auto a, auto b) { return a | b; }>(type);
  if (name == "xor") return Wrapping2<[](auto a, auto b) { return a ^ b; }>(type);
  if (name == "shl") return ShiftOf<true>(type);
  if (name == "shr") return ShiftOf<false>(type);
  if (name == "copysign") {
    return &Map2<float, [](float sign, float x) { return std::copysign(x, sign); }>;
  }

  *num_from = 1;
  if (name == "not") {
    if (type == Type::kPred) return &Map1<uint8_t, [](uint8_t a) { return (a & 1) == 0; }>;
    return Wrapping1<[](auto a) { return ~a; }>(type);
  }
  if (name == "neg") {
    constexpr auto kNegative = [](auto a) { return -a; };
    return is_float ? Floating1<kNegative>(type) : Wrapping1<kNegative>(type);
  }
  if (name == "abs") {
    if (is_float) return Floating1<[](auto a) { return std::fabs(a); }>(type);
    return &Map1<int32_t, [](int32_t a) { return a < 0 ? 0u - a : a; }>;
  }
  if (name == "popc") return &Map1<uint32_t, [](uint32_t a) { return std::popcount(a); }>;
  if (name == "clz") return &Map1<uint32_t, [](uint32_t a) { return std::countl_zero(a); }>;
  if (name == "bfind" && Has(opcode, "shiftamt")) {
    return &Map1<uint32_t, [](uint32_t a) { return a == 0 ? ~0u : std::countl_zero(a); }>;
  }
  if (name == "bfind") {
    return &Map1<uint32_t, [](uint32_t a) { return a == 0 ? ~0u : 31 - std::countl_zero(a); }>;
  }
  if (name == "brev") {
    return &Map1<uint32_t, [](uint32_t a) {
      uint32_t reversed = 0;
      for (int i = 0; i < 32; ++i) reversed |= (a >> i & 1) << (31 - i);
      return reversed;
    }>;
  }
  if (name == "ex2") return &Approximate<ApproxPowerOfTwo, 0.0f>;
  if (name == "lg2") return &Approximate<ApproxLogarithm, 1.0f>;
  if (name == "rsqrt") return &Approximate<ApproxInverseRoot, 1.0f>;
  if (name == "rcp") {
    if (type == Type::kF64 && Has(opcode, "approx")) {  // the high word only
      return &Map1<double, [](double x) {
        return std::bit_cast<double>(std::bit_cast<uint64_t>(1.0 / x) & ~0xFFFFFFFFull);
      }>;
    }
    if (Has(opcode, "ftz")) {
      return &Map1<float, [](float x) { return FlushTiny(1.0f / FlushTiny(x)); }>;
    }
    return Floating1<[](auto a) { return 1 / a; }>(type);
  }
  if (name == "sqrt") return Floating1<[](auto a) { return std::sqrt(a); }>(type);

  *num_from = 3;
  if (name == "mad") {
    if (bytes == 4) return &Map3<uint32_t, [](auto a, auto b, auto c) { return a * b + c; }>;
    return &Map3<uint64_t, [](auto a, auto b, auto c) { return a * b + c; }>;
  }
  if (name == "fma") {
    if (Has(opcode, "rm")) {
      return &Map3<float, [](float a, float b, float c) { return MulAddDown(a, b, c); }>;
    }
    if (type == Type::kF64) {
      return &Map3<double, [](double a, double b, double c) { return std::fma(a, b, c); }>;
    }
    return &Map3<float, [](float a, float b, float c) { return std::fma(a, b, c); }>;
  }
  if (name == "shf") {  // of the pair b:a
    if (Has(opcode, "l")) {
      return &Map3<uint32_t, [](uint32_t a, uint32_t b, uint32_t by) {
        return uint32_t((uint64_t{b} << 32 | a) << (by & 31) >> 32);
      }>;
    }
    return &Map3<uint32_t, [](uint32_t a, uint32_t b, uint32_t by) {
      return uint32_t((uint64_t{b} << 32 | a) >> (by & 31));
    }>;
  }
  if (name == "prmt") {
    return &Map3<uint32_t, [](uint32_t a, uint32_t b, uint32_t c) { return Permute(a, b, c); }>;
  }
  if (name == "selp") return &Select;

  *num_from = 4;
  if (name == "bfi") return bytes == 4 ? &InsertField<uint32_t> : &InsertField<uint64_t>;
  return nullptr;
}

// ---- Conversions and comparisons

namespace {

double ToDouble(uint64_t bits, Type type) {
  switch (type) {
    case Type::kF64: return As<double>(bits);
    case Type::kF32: return double(As<float>(bits));
    case Type::kF16: return double(FloatFromF16(uint16_t(bits)));
    case Type::kBF16: return double(FloatFromBf16(uint16_t(bits)));
    case Type::kS8: return int8_t(bits);
    case Type::kS16: return int16_t(bits);
    case Type::kS32: return int32_t(bits);
    case Type::kS64: return double(int64_t(bits));
    case Type::kU8: return uint8_t(bits);
    case Type::kU16: return uint16_t(bits);
    case Type::kU32: return uint32_t(bits);
    default: return double(bits);
  }
}

int64_t ToInteger(uint64_t bits, Type type) {
  switch (type) {
    case Type::kS8: return int8_t(bits);
    case Type::kS16: return int16_t(bits);
    case Type::kS32: return int32_t(bits);
    case Type::kU8: return uint8_t(bits);
    case Type::kU16: return uint16_t(bits);
    case Type::kU32: return uint32_t(bits);
    default: return int64_t(bits);
  }
}

template <typename T>
uint64_t Clamped(double x) {
  if (x != x) return 0;
  if (x >= double(std::numeric_limits<T>::max())) return BitsOf(std::numeric_limits<T>::max());
  if (x <= double(std::numeric_limits<T>::min())) return BitsOf(std::numeric_limits<T>::min());
  return BitsOf(T(x));
}

uint64_t FloatToFloat(const Instruction& in, uint64_t bits) {
  if (in.type == Type::kF32 && in.from == Type::kF32) {
    float x = As<float>(bits);
    if (in.mode == kToIntTowardsZero) x = std::trunc(x);
    if (in.mode == kToIntNearest) x = std::nearbyint(x);
    if (in.saturates) x = x != x ? 0 : std::clamp(x, 0.0f, 1.0f);
    return BitsOf(x);
  }
  const double x = ToDouble(bits, in.from);
  switch (in.type) {
    case Type::kF64: return BitsOf(x);
    case Type::kF32: return BitsOf(float(x));
    case Type::kF16: return in.from == Type::kF32 ? F16FromFloat(float(x)) : (Fail(in, "cvt"), 0);
    case Type::kBF16: return in.from == Type::kF32 ? Bf16FromFloat(float(x)) : (Fail(in, "cvt"), 0);
    default: Fail(in, "a conversion that is not known");
  }
}

uint64_t FloatToInteger(const Instruction& in, uint64_t bits) {
  const double x = ToDouble(bits, in.from);
  const double whole = in.mode == kToIntNearest ? std::nearbyint(x) : std::trunc(x);
  switch (in.type) {
    case Type::kS32: return Clamped<int32_t>(whole);
    case Type::kU32: return Clamped<uint32_t>(whole);
    case Type::kS64: return Clamped<int64_t>(whole);
    case Type::kU64: return Clamped<uint64_t>(whole);
    default: Fail(in, "a conversion that is not known");
  }
}

uint64_t IntegerToFloat(const Instruction& in, uint64_t bits) {
  if (in.type == Type::kF64) return BitsOf(ToDouble(bits, in.from));
  if (in.type != Type::kF32) Fail(in, "a conversion that is not known");
  if (in.from == Type::kU64) return BitsOf(float(bits));
  return BitsOf(float(ToInteger(bits, in.from)));
}

// f(a value of the integer type `type`; of another type, an unsigned integer of its size).
template <typename F>
void WithInteger(Type type, const F& f) {
  switch (type) {
    case Type::kS8: return f(int8_t{});
    case Type::kS16: return f(int16_t{});
    case Type::kS32: return f(int32_t{});
    case Type::kS64: return f(int64_t{});
    default: break;
  }
  switch (BytesOf(type)) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

// What a register holds of an integer in `type`: bytes as 16 bits.
template <typename T>
uint64_t InRegister(T value) {
  if constexpr (std::is_same_v<T, int8_t>) return uint16_t(int16_t{value});
  return BitsOf(value);
}

void IntegerToInteger(const Instruction& in, uint32_t lanes, const uint64_t* from, uint64_t* to) {
  if (in.saturates) Fail(in, "a conversion that is not known");
  WithInteger(in.from, [&]<typename From>(From) {
    WithInteger(in.type, [&]<typename To>(To) {
      ForLanes(lanes, [=](int l) { to[l] = InRegister(To(As<From>(from[l]))); });
    });
  });
}

// In the order of ParseComparison.
constexpr const char* kComparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                        "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

template <typename T>
bool Compare(T a, T b, int comparison) {
  const bool is_nan = a != a || b != b;
  if (comparison == 12) return !is_nan;
  if (comparison == 13) return is_nan;
  if (is_nan) return comparison >= 6;
  switch (comparison % 6) {
    case 0: return a == b;
    case 1: return a != b;
    case 2: return a < b;
    case 3: return a <= b;
    case 4: return a > b;
    default: return a >= b;
  }
}

// f(a value of the type that comparisons of `type` have).
template <typename F>
void WithComparedType(Type type, const F& f) {
  if (type == Type::kF32) return f(float{});
  if (type == Type::kF64) return f(double{});
  WithInteger(type, f);
}

}  // namespace

int ParseComparison(const std::string& name) {
  if (name == "lo") return 2;
  if (name == "ls") return 3;
  if (name == "hi") return 4;
  if (name == "hs") return 5;
  const auto* const at = std::find(std::begin(kComparisons), std::end(kComparisons), name);
  return at == std::end(kComparisons) ? -1 : int(at - std::begin(kComparisons));
}

void Convert(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t* const a = w.Register(in.slots[1]);
  if (in.type == Type::kF16x2) {  // the first operand is the high half
    const uint64_t* const low = w.Register(in.slots[2]);
    ForLanes(lanes, [=](int l) {
      to[l] = uint64_t{F16FromFloat(As<float>(low[l]))} | uint64_t{F16FromFloat(As<float>(a[l]))}
                                                              << 16;
    });
    return;
  }
  // The commonest, as loops of their own.
  if (in.type == Type::kF32 && in.from == Type::kF16) {
    ForLanes(lanes, [=](int l) { to[l] = BitsOf(FloatFromF16(uint16_t(a[l]))); });
    return;
  }
  if (in.type == Type::kF64 && in.from == Type::kF32) {
    ForLanes(lanes, [=](int l) { to[l] = BitsOf(double{As<float>(a[l])}); });
    return;
  }
  if (!IsFloat(in.type) && !IsFloat(in.from)) return IntegerToInteger(in, lanes, a, to);
  const auto convert =
      !IsFloat(in.type) ? &FloatToInteger : (IsFloat(in.from) ? &FloatToFloat : &IntegerToFloat);
  ForLanes(lanes, [&](int l) { to[l] = convert(in, a[l]); });
}

void SetPredicate(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const a = w.Register(in.slots[1]), *const b = w.Register(in.slots[2]);
  const int comparison = in.mode % 16, combination = in.mode / 16;
  const uint64_t* const with = combination == kAlone ? nullptr : w.Register(in.slots[3]);
  WithComparedType(in.type, [&]<typename T>(T) {
    ForLanes(lanes, [&](int l) {
      const bool is_true = Compare(As<T>(a[l]), As<T>(b[l]), comparison);
      const bool other = with != nullptr && (with[l] & 1) != 0;
      switch (combination) {
        case kAlone: to[l] = is_true; break;
        case kAnd: to[l] = is_true && other; break;
        case kOr: to[l] = is_true || other; break;
        default: to[l] = is_true != other;
      }
    });
  });
}

// ---- Registers and addresses

void Move(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t* const from = w.Register(in.slots[1]);
  ForLanes(lanes, [=](int l) { to[l] = from[l]; });
}

void PackVector(Warp& w, const Instruction& in, uint32_t lanes) {
  const int bits = 8 * BytesOf(in.type) / in.count;
  ForLanes(lanes, [&](int l) {
    uint64_t packed = 0;
    for (int i = 0; i < in.count; ++i) {
      packed |= (w.Register(in.slots[1 + i])[l] & ((1ull << bits) - 1)) << (bits * i);
    }
    w.Register(in.slots[0])[l] = packed;
  });
}

void UnpackVector(Warp& w, const Instruction& in, uint32_t lanes) {
  const int bits = 8 * BytesOf(in.type) / in.count;
  ForLanes(lanes, [&](int l) {
    const uint64_t packed = w.Register(in.slots[in.count])[l];
    for (int i = 0; i < in.count; ++i) {
      if (in.slots[i] < 0) continue;
      w.Register(in.slots[i])[l] = packed >> (bits * i) & ((1ull << bits) - 1);
    }
  });
}

void ReadSpecial(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const Block& block = *w.block;
  ForLanes(lanes, [&](int l) {
    switch (in.mode) {
      case kTidX: to[l] = w.Thread(l); break;
      case kCtaidX: to[l] = uint64_t(block.x); break;
      case kCtaidY: to[l] = uint64_t(block.y); break;
      case kClusterRank: to[l] = uint64_t(block.rank); break;
      case kClusterBlocks: to[l] = block.cluster->blocks.size(); break;
      default: to[l] = uint64_t(l);
    }
  });
}

namespace {

uint64_t TagOf(Space space) {
  switch (space) {
    case Space::kShared: return kSharedSpace;
    case Space::kLocal: return kLocalSpace;
    case Space::kParam: return kParamSpace;
    default: return 0;
  }
}

}  // namespace

void ToGeneric(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t* const from = w.Register(in.slots[1]);
  const uint64_t tag = TagOf(in.space);
  const uint64_t rank = in.space == Space::kShared ? uint64_t(w.block->rank) << 32 : 0;
  ForLanes(lanes, [=](int l) { to[l] = tag == 0 ? from[l] : tag | rank | uint32_t(from[l]); });
}

void FromGeneric(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t* const from = w.Register(in.slots[1]);
  const uint64_t expected = TagOf(in.space);
  ForLanes(lanes, [&](int l) {
    const uint64_t tag = from[l] & kSpaceMask;
    const bool is_global = tag != kSharedSpace && tag != kLocalSpace && tag != kParamSpace;
    if (expected == 0 ? !is_global : tag != expected) Fail(in, "an address of another space");
    to[l] = expected == 0 ? from[l] : uint32_t(from[l]);
  });
}

void MapToRank(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t *const address = w.Register(in.slots[1]), *const rank = w.Register(in.slots[2]);
  ForLanes(lanes, [&](int l) {
    if ((address[l] & kSpaceMask) != kSharedSpace) Fail(in, "not an address of shared memory");
    if (uint32_t(rank[l]) >= w.block->cluster->blocks.size()) Fail(in, "no block of this rank");
    to[l] = kSharedSpace | uint64_t{uint32_t(rank[l])} << 32 | uint32_t(address[l]);
  });
}

// ---- Memory

namespace {

// `num_bytes` of memory in the low bits. A copy of a size that is not constant would be a call, and
// its result a read of what two writes have left.
uint64_t BitsAt(const uint8_t* bytes, int num_bytes) {
  const auto read = [bytes]<typename T>(T value) {
    std::memcpy(&value, bytes, sizeof(value));
    return uint64_t{value};
  };
  switch (num_bytes) {
    case 1: return read(uint8_t{});
    case 2: return read(uint16_t{});
    case 4: return read(uint32_t{});
    default: return read(uint64_t{});
  }
}

void SetBitsAt(uint8_t* bytes, uint64_t bits, int num_bytes) {
  const auto write = [bytes](auto value) { std::memcpy(bytes, &value, sizeof(value)); };
  switch (num_bytes) {
    case 1: return write(uint8_t(bits));
    case 2: return write(uint16_t(bits));
    case 4: return write(uint32_t(bits));
    default: return write(bits);
  }
}

}  // namespace

void Load(Warp& w, const Instruction& in, uint32_t lanes) {
  const int all = BytesOf(in.type) * in.count;
  const uint64_t* const addresses = w.Register(in.slots[in.count]);
  CountMemory(w, in, lanes, addresses, all, in.space);
  const uint8_t* from[kLanes];
  ForLanes(lanes, [&](int l) {
    const Place place = Resolve(w, l, addresses[l] + uint64_t(in.offset), in.space, all, in);
    if (place.block != nullptr) NoteRead(w, l, in, *place.block, place.at, all);
    from[l] = place.bytes;
  });
  // A vector's registers may hold its address: all of it was read before they change.
  WithInteger(in.type, [&]<typename T>(T) {
    for (int i = 0; i < in.count; ++i) {
      if (in.slots[i] < 0) continue;
      uint64_t* const to = w.Register(in.slots[i]);
      ForLanes(lanes, [=, &from](int l) {
        T value;
        std::memcpy(&value, from[l] + size_t(i) * sizeof(T), sizeof(T));
        to[l] = uint64_t(value);  // a sign is extended
      });
    }
  });
}

void Store(Warp& w, const Instruction& in, uint32_t lanes) {
  const int bytes = BytesOf(in.type), all = bytes * in.count;
  const uint64_t* const addresses = w.Register(in.slots[0]);
  CountMemory(w, in, lanes, addresses, all, in.space);
  ForLanes(lanes, [&](int l) {
    const Place place = Resolve(w, l, addresses[l] + uint64_t(in.offset), in.space, all, in);
    if (place.block != nullptr) NoteWrite(w, l, in, *place.block, place.at, all);
    for (int i = 0; i < in.count; ++i) {
      SetBitsAt(place.bytes + i * bytes, w.Register(in.slots[1 + i])[l], bytes);
    }
  });
}

void Atomic(Warp& w, const Instruction& in, uint32_t lanes) {
  const int bytes = BytesOf(in.type);
  const uint64_t *const addresses = w.Register(in.slots[1]), *const value = w.Register(in.slots[2]);
  ForLanes(lanes, [&](int l) {
    const Place place = Resolve(w, l, addresses[l] + uint64_t(in.offset), in.space, bytes, in);
    if (place.block != nullptr) NoteAtomic(w, l, in, *place.block, place.at, bytes);
    const uint64_t before = BitsAt(place.bytes, bytes);
    SetBitsAt(place.bytes, in.mode == 0 ? before + value[l] : before | value[l], bytes);
    if (in.slots[0] >= 0) w.Register(in.slots[0])[l] = before;
  });
}

// ---- Collectives of a warp

void ShuffleLanes(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  uint64_t* const in_range = in.slots[1] < 0 ? nullptr : w.Register(in.slots[1]);
  uint64_t given[kLanes];
  std::memcpy(given, w.Register(in.slots[2]), sizeof(given));
  const uint64_t *const by = w.Register(in.slots[3]), *const limits = w.Register(in.slots[4]);
  ForLanes(lanes, [&](int l) {
    const uint32_t lane = uint32_t(l), limit = uint32_t(limits[l]), segment = limit >> 8 & 31;
    const uint32_t most = (lane & segment) | (limit & 31 & ~segment);
    uint32_t from = in.mode == 0 ? lane ^ (uint32_t(by[l]) & 31)
                                 : (lane & segment) | (uint32_t(by[l]) & 31 & ~segment);
    const bool is_valid = from <= most;
    if (!is_valid) from = lane;
    if ((lanes >> from & 1) == 0) Fail(in, "a shuffle from a lane that does not take part");
    to[l] = uint32_t(given[from]);
    if (in_range != nullptr) in_range[l] = is_valid;
  });
}

void BallotLanes(Warp& w, const Instruction& in, uint32_t lanes) {
  uint64_t* const to = w.Register(in.slots[0]);
  const uint64_t* const p = w.Register(in.slots[1]);
  uint32_t ballot = 0;
  for (int l = 0; l < kLanes; ++l) ballot |= (lanes >> l & uint32_t(p[l]) & 1) << l;
  ForLanes(lanes, [=](int l) { to[l] = ballot; });
}

void WarpBarrier(Warp& w, const Instruction&, uint32_t) { ++w.epoch; }

namespace {

float Truncated(double sum) {
  const float nearest = float(sum);
  const bool is_above = std::fabs(double(nearest)) > std::fabs(sum);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - (is_above ? 1u : 0u));
}

// The products and c cut to 25 bits below the largest of them, added, and truncated.
float AlignedSum(const double (&products)[16], float c) {
  int largest = std::numeric_limits<int>::min();
  for (const double x : products) {
    if (x != 0) largest = std::max(largest, std::ilogb(x));
  }
  if (c != 0) largest = std::max(largest, std::ilogb(double(c)));
  if (largest == std::numeric_limits<int>::min()) return 0;
  const double unit = std::ldexp(1.0, largest - 25);
  double sum = std::trunc(double(c) / unit);
  for (const double x : products) sum += std::trunc(x / unit);
  return Truncated(sum * unit);
}

}  // namespace

// slots: d (= c) [4], a [4], b [2]. Which elements a lane holds: kernels/cuda/instructions.cuh.
void Multiply16x8x16(Warp& w, const Instruction& in, uint32_t lanes) {
  if (lanes != kAllLanes) Fail(in, "an MMA by a part of a warp");
  ++w.machine->counts.mmas;
  const bool is_bf16 = in.mode == 1;
  const auto widen = [&](uint64_t bits) {
    return is_bf16 ? FloatFromBf16(uint16_t(bits)) : FloatFromF16(uint16_t(bits));
  };
  double b[16][8];
  uint64_t bits_of_row[16] = {};
  bool is_finite = true;
  for (int l = 0; l < kLanes; ++l) {
    const int group = l / 4, pair = 2 * (l % 4);
    for (int i = 0; i < 4; ++i) {
      const uint64_t bits = w.Register(in.slots[4 + i])[l];
      bits_of_row[group + i % 2 * 8] |= bits & 0x7FFF7FFF;
    }
    for (int i = 0; i < 2; ++i) {
      const uint64_t bits = w.Register(in.slots[8 + i])[l];
      for (int j = 0; j < 2; ++j) {
        const float x = widen(bits >> (16 * j));
        b[pair + 8 * i + j][group] = double{x};
        is_finite = is_finite && std::isfinite(x);
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    if (bits_of_row[row] == 0 && is_finite) continue;  // most rows of decode
    const auto bits_at = [&](int col) -> uint64_t& {
      return w.Register(in.slots[row / 8 * 2 + col % 2])[row % 8 * 4 + col / 2];
    };
    double a[16];  // a product with b is exact
    for (int l = row % 8 * 4, col = 0; col < 8; ++l, col += 2) {
      for (int half = 0; half < 2; ++half) {
        const uint64_t bits = w.Register(in.slots[4 + row / 8 + 2 * half])[l];
        a[8 * half + col] = double{widen(bits)};
        a[8 * half + col + 1] = double{widen(bits >> 16)};
      }
    }
    double sums[8];
    for (int col = 0; col < 8; ++col) sums[col] = double{As<float>(bits_at(col))};
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) sums[col] += a[k] * b[k][col];
    }
    for (int col = 0; col < 8; ++col) {
      uint64_t& bits = bits_at(col);
      if (w.machine->options.aligns_products && std::isfinite(sums[col])) {
        double products[16];
        for (int k = 0; k < 16; ++k) products[k] = a[k] * b[k][col];
        bits = BitsOf(AlignedSum(products, As<float>(bits)));
      } else {
        bits = BitsOf(Truncated(sums[col]));
      }
    }
  }
}

// The same of bytes: a signed, b unsigned, and int32 sums.
void Multiply16x8x32(Warp& w, const Instruction& in, uint32_t lanes) {
  if (lanes != kAllLanes) Fail(in, "an MMA by a part of a warp");
  ++w.machine->counts.mmas;
  int8_t a[16][32];
  uint8_t b[8][32];  // by column
  for (int l = 0; l < kLanes; ++l) {
    const int group = l / 4, first = 4 * (l % 4);
    for (int i = 0; i < 4; ++i) {
      std::memcpy(&a[group + i % 2 * 8][first + i / 2 * 16], &w.Register(in.slots[4 + i])[l], 4);
    }
    for (int i = 0; i < 2; ++i) {
      std::memcpy(&b[group][first + 16 * i], &w.Register(in.slots[8 + i])[l], 4);
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + i / 2 * 8, col = 2 * (l % 4) + i % 2;
      uint64_t& bits = w.Register(in.slots[i])[l];
      uint32_t sum = uint32_t(bits);
      for (int k = 0; k < 32; ++k) sum += uint32_t(int{a[row][k]} * int{b[col][k]});
      bits = sum;
    }
  }
}

void LoadMatrices(Warp& w, const Instruction& in, uint32_t lanes) {
  if (lanes != kAllLanes) Fail(in, "ldmatrix by a part of a warp");
  const uint64_t* const addresses = w.Register(in.slots[4]);
  CountMemory(w, in, lanes, addresses, 16, Space::kShared);
  uint16_t elements[4][8][8];
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t at = uint32_t(addresses[l] + uint64_t(in.offset));
    if (at % 16 != 0) Fail(in, "a row that is not aligned");
    std::memcpy(elements[l / 8][l % 8], SharedBytes(*w.block, at, 16, in), 16);
    NoteRead(w, l, in, *w.block, at, 16);
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int i = 0; i < 4; ++i) {
      w.Register(in.slots[i])[l] =
          elements[i][2 * (l % 4)][l / 4] | uint64_t{elements[i][2 * (l % 4) + 1][l / 4]} << 16;
    }
  }
}

// ---- Asynchronous copies

namespace {

void Finish(Block& block, const Copy& copy) {
  std::memcpy(&block.shared[copy.to], reinterpret_cast<const void*>(copy.from), copy.valid_bytes);
  std::memset(&block.shared[copy.to + copy.valid_bytes], 0, copy.num_bytes - copy.valid_bytes);
}

ByteBarrier& BarrierAt(Warp& w, const Instruction& in, uint64_t address) {
  const auto at = w.block->barriers.find(uint32_t(address));
  if (at == w.block->barriers.end()) Fail(in, "a barrier that is not initialised");
  return at->second;
}

void CompletePhase(ByteBarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.count;
  ++barrier.phase;
}

}  // namespace

// slots: to, from, valid bytes or none.
void StartCopy(Warp& w, const Instruction& in, uint32_t lanes) {
  const uint64_t *const to = w.Register(in.slots[0]), *const from = w.Register(in.slots[1]);
  const uint64_t* const valid = in.slots[2] < 0 ? nullptr : w.Register(in.slots[2]);
  CountMemory(w, in, lanes, to, in.count, Space::kShared);
  CountMemory(w, in, lanes, from, in.count, Space::kGlobal);
  const uint32_t bytes = uint32_t(in.count);
  ForLanes(lanes, [&](int l) {
    const uint32_t at = uint32_t(to[l] + uint64_t(in.offset));
    if (at % bytes != 0 || from[l] % bytes != 0) Fail(in, "a copy that is not aligned");
    SharedBytes(*w.block, at, in.count, in);
    NoteWrite(w, l, in, *w.block, at, in.count);
    const uint32_t valid_bytes = valid == nullptr ? bytes : uint32_t(valid[l]);
    if (valid_bytes > bytes) Fail(in, "more bytes than the copy has");
    w.open_group[l].push_back({at, from[l], bytes, valid_bytes});
  });
}

void CommitGroup(Warp& w, const Instruction&, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    w.groups[l].push_back(std::move(w.open_group[l]));
    w.open_group[l].clear();
    if (w.machine->IsLate()) return;
    for (const Copy& copy : w.groups[l].back()) Finish(*w.block, copy);
  });
}

void WaitGroups(Warp& w, const Instruction& in, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    while (w.groups[l].size() > size_t(in.offset)) {
      for (const Copy& copy : w.groups[l].front()) {
        Finish(*w.block, copy);
        NoteWrite(w, l, in, *w.block, copy.to, int(copy.num_bytes));
      }
      w.groups[l].pop_front();
    }
  });
}

void InitByteBarrier(Warp& w, const Instruction& in, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const uint32_t at = uint32_t(w.Register(in.slots[0])[l]);
    if (at % 8 != 0) Fail(in, "a barrier that is not aligned");
    SharedBytes(*w.block, at, 8, in);
    const int count = int(w.Register(in.slots[1])[l]);
    w.block->barriers[at] = {.count = count, .pending = count, .copies = {}};
  });
}

void ExpectBytes(Warp& w, const Instruction& in, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    BarrierAt(w, in, w.Register(in.slots[0])[l]).bytes += uint32_t(w.Register(in.slots[1])[l]);
  });
}

void ArriveAtByteBarrier(Warp& w, const Instruction& in, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    ByteBarrier& barrier = BarrierAt(w, in, w.Register(in.slots[0])[l]);
    if (barrier.pending == 0) Fail(in, "one arrival too many");
    --barrier.pending;
    CompletePhase(barrier);
  });
}

// slots: to, from, bytes, barrier.
void StartBulkCopy(Warp& w, const Instruction& in, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const uint32_t to = uint32_t(w.Register(in.slots[0])[l]);
    const uint64_t from = w.Register(in.slots[1])[l];
    const uint32_t bytes = uint32_t(w.Register(in.slots[2])[l]);
    ByteBarrier& barrier = BarrierAt(w, in, w.Register(in.slots[3])[l]);
    if (to % 16 != 0 || from % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
      Fail(in, "a bulk copy that is not aligned");
    }
    SharedBytes(*w.block, to, int(bytes), in);
    NoteWrite(w, l, in, *w.block, to, int(bytes), &barrier);
    const Copy copy{to, from, bytes, bytes};
    if (w.machine->IsLate()) {
      barrier.copies.push_back(copy);
    } else {
      Finish(*w.block, copy);
      barrier.bytes -= bytes;
      CompletePhase(barrier);
    }
  });
}

// slots: predicate, barrier, parity.
void TestByteBarrier(Warp& w, const Instruction& in, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    ByteBarrier& barrier = BarrierAt(w, in, w.Register(in.slots[1])[l]);
    const uint32_t parity = uint32_t(w.Register(in.slots[2])[l]) & 1;
    if (barrier.phase % 2 == parity && !barrier.copies.empty()) {
      for (const Copy& copy : barrier.copies) {
        Finish(*w.block, copy);
        barrier.bytes -= copy.num_bytes;
      }
      barrier.copies.clear();
      CompletePhase(barrier);
    }
    const bool is_done = barrier.phase % 2 != parity;
    w.Register(in.slots[0])[l] = is_done;
    if (is_done) w.seen[l][&barrier] = barrier.phase;
  });
}

void WaitForPrevious(Warp& w, const Instruction&, uint32_t) { w.has_waited = true; }
void Nothing(Warp&, const Instruction&, uint32_t) {}
void TrapHere(Warp&, const Instruction& in, uint32_t) { Fail(in, "the kernel stopped itself"); }

}  // namespace lssar::ptx
