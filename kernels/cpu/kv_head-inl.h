// Addresses of one sequence's keys, values and scales of one KV head, and loads that widen elements
// to floats. Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_KV_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_KV_HEAD_INL_H_
#undef LSSAR_KERNELS_CPU_KV_HEAD_INL_H_
#else
#define LSSAR_KERNELS_CPU_KV_HEAD_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Stands for the elements of fx16 pages: keys in two planes of bytes, values in fp16. Other pages
// are named by their element.
struct Fx16 {};
template <typename T>
constexpr bool kIsFixed = std::is_same_v<T, Fx16>;
template <typename T>
using KeyOf = std::conditional_t<kIsFixed<T>, uint8_t, T>;  // Fx16: of the high plane
template <typename T>
using ValueOf = std::conditional_t<kIsFixed<T>, hwy::float16_t, T>;

// Adjacent elements of a key.
template <typename T>
constexpr size_t kKeyElements = kIsFixed<T> ? 4 : 1;

// True if a value's element needs its token's scale; if a key's does.
template <typename T>
constexpr bool kHasScales = std::is_same_v<T, int8_t>;
template <typename T>
constexpr bool kKeysHaveScales = kHasScales<T> || kIsFixed<T>;

// One vector of elements, widened to floats, not scaled.
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadWideAs(D d, const T* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWideAs(D d, const float* from) {
  return hn::LoadU(d, from);
}
#if !(HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86)
// Without an instruction for it. Highway's fallback makes infinity and NaN finite.
template <class D>
HWY_INLINE hn::Vec<D> LoadWideAs(D d, const hwy::float16_t* from) {
  const hn::RebindToSigned<D> d_int;
  const hn::Rebind<int16_t, D> d_half;
  const auto bits = hn::PromoteTo(d_int, hn::LoadU(d_half, reinterpret_cast<const int16_t*>(from)));
  const auto magnitude = hn::And(bits, hn::Set(d_int, 0x7fff));
  const auto sign = hn::And(bits, hn::Set(d_int, std::numeric_limits<int32_t>::min()));
  // The exponent's bias grows by 112; exact, also for subnormal numbers.
  const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special =
      hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(d_int, 0x7bff)), hn::Set(d_int, 0x7f800000));
  return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(d_int, scaled), special), sign));
}
#endif
template <class D>
HWY_INLINE hn::Vec<D> LoadWideAs(D d, const int8_t* from) {
  const hn::RebindToSigned<D> d_int;
  return hn::ConvertTo(d, hn::PromoteTo(d_int, hn::LoadU(hn::Rebind<int8_t, D>(), from)));
}

// Prefetches to L2, not to L1. L1 has few buffers for misses and drops prefetches while all of them
// are in use (24 on Zen 4); L2 takes many more (BENCHMARKS.md).
HWY_INLINE void PrefetchToL2(const void* at) { __builtin_prefetch(at, /*rw=*/0, /*locality=*/2); }

template <typename T>
class KvHead {
 public:
  KvHead(const AttentionArgs& args, const AttentionItem& item)
      : layout_(args.kv.layout),
        pages_(item.sequence->pages.data()),
        k_(static_cast<const char*>(args.kv.k) + FirstBlock(args, item).k * ElementBytes()),
        v_(static_cast<const char*>(args.kv.v) + FirstBlock(args, item).v * ElementBytes()),
        key_page_bytes_(layout_.BlockStride() * ElementBytes()),
        value_page_bytes_(layout_.ValueBlockStride() * ElementBytes()),
        page_shift_(std::countr_zero(unsigned(layout_.page_size))) {}

  // The key's element of dim 0. The next dim is KeyStride() elements further; Fx16: the next 4 dims
  // of the high plane.
  const KeyOf<T>* Key(int key) const {
    const auto* block = reinterpret_cast<const KeyOf<T>*>(KeyBlock(key));
    return block + size_t(Slot(key)) * kKeyElements<T>;
  }
  bool InOnePage(int key, int other) const { return (key ^ other) >> page_shift_ == 0; }
  // True if the key's page lies behind that of the keys before it.
  bool FollowsPage(int key) const {
    const int page = key >> page_shift_;
    return page > 0 && pages_[page] == pages_[page - 1] + 1;
  }
  int PageSize() const { return layout_.page_size; }
  int PageShift() const { return page_shift_; }  // of key / PageSize()
  size_t KeyStride() const { return size_t(layout_.page_size) * kKeyElements<T>; }
  const ValueOf<T>* Value(int key) const {
    return reinterpret_cast<const ValueOf<T>*>(ValueBlock(key)) + layout_.ValueIndex(Slot(key), 0);
  }

  // Elements from a value to the next one of its page.
  size_t ValueStride() const { return layout_.ValueStride(); }

  // Fx16: the key in the low plane. The next key of its page is LowStride() bytes further. 63 bytes
  // behind it may be read (kFixedReadAhead).
  const uint8_t* LowKey(int key) const {
    return reinterpret_cast<const uint8_t*>(ValueBlock(key)) + layout_.LowIndex(Slot(key), 0);
  }
  size_t LowStride() const { return layout_.LowIndex(1, 0); }

  // The scales of the key and of the later keys of its page. Null if elements have no scales.
  const float* KeyScales(int key) const {
    return kKeysHaveScales<T> ? ScaleIn(KeyBlock(key), key) : nullptr;
  }
  const float* ValueScales(int key) const {
    return kHasScales<T> ? ScaleIn(ValueBlock(key), key) : nullptr;
  }

 private:
  static KvBlock FirstBlock(const AttentionArgs& args, const AttentionItem& item) {
    return args.kv.layout.Block(args.layer, 0, item.kv_head);
  }
  size_t ElementBytes() const { return BytesOf(layout_.dtype); }
  const char* KeyBlock(int key) const {
    return k_ + size_t(pages_[key >> page_shift_]) * key_page_bytes_;
  }
  const char* ValueBlock(int key) const {
    return v_ + size_t(pages_[key >> page_shift_]) * value_page_bytes_;
  }
  int Slot(int key) const { return key & (layout_.page_size - 1); }
  const float* ScaleIn(const char* block, int key) const {
    return reinterpret_cast<const float*>(block + layout_.ScaleIndex(Slot(key)));
  }

  const KvLayout& layout_;
  const int32_t* pages_;
  const char* k_;  // the block of page 0
  const char* v_;
  size_t key_page_bytes_;
  size_t value_page_bytes_;
  int page_shift_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
