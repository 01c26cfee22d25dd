// The forms of operations that operations.cc computes. A form is the name with all its parts but
// the types.
#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/ptx/operations.h"
#include "tests/ptx/program.h"

namespace lssar::ptx {

// A rounding, a saturation or a width that is not here would run as another one.
bool IsKnownForm(const Opcode& opcode) {
  // Types: those of one instruction with '>' between them; "*": all, which the operation checks.
  static const auto* const kForms = new std::map<std::string, std::string>{
      {"abs", "s32 f32 f64"},
      {"add", "s16 u16 s32 u32 s64 u64"},
      {"add.rn", "f32 f64"},
      {"and", "pred b16 b32 b64"},
      {"atom.global.add", "u32"},
      {"atom.shared.add", "u32"},
      {"atom.shared.or", "b32"},
      {"bar.red.or", "pred"},
      {"bar.sync", ""},
      {"bar.warp.sync", ""},
      {"barrier.cluster.arrive.relaxed.aligned", ""},
      {"barrier.cluster.arrive.release.aligned", ""},
      {"barrier.cluster.wait.acquire.aligned", ""},
      {"barrier.cluster.wait.aligned", ""},
      {"bfi", "b32 b64"},
      {"bfind", "u32"},
      {"bfind.shiftamt", "u32"},
      {"bra", ""},
      {"bra.uni", ""},
      {"brev", "b32"},
      {"call.uni", ""},
      {"clz", "b32"},
      {"copysign", "f32"},
      {"cp.async.bulk.shared.cluster.global.mbarrier.complete_tx.bytes", ""},
      {"cp.async.ca.shared.global", ""},
      {"cp.async.cg.shared.global", ""},
      {"cp.async.commit_group", ""},
      {"cp.async.wait_group", ""},
      {"cvt", "*"},
      {"cvt.rn", "*"},
      {"cvt.rni", "f32>f32 s32>f32"},
      {"cvt.rzi", "f32>f32 s32>f32 u32>f32 s64>f32 u64>f32 s32>f64 u32>f64 s64>f64 u64>f64"},
      {"cvt.sat", "f32>f32"},
      {"cvta.local", "u64"},
      {"cvta.param", "u64"},
      {"cvta.shared", "u64"},
      {"cvta.to.global", "u64"},
      {"cvta.to.local", "u64"},
      {"div", "s32 u32 s64 u64"},
      {"div.rn", "f32 f64"},
      {"ex2.approx.ftz", "f32"},
      {"fence.mbarrier_init.release.cluster", ""},
      {"fma.rm", "f32"},
      {"fma.rn", "f32 f64"},
      {"griddepcontrol.launch_dependents", ""},
      {"griddepcontrol.wait", ""},
      {"ld", "*"},
      {"ld.global", "*"},
      {"ld.global.v2", "*"},
      {"ld.global.v4", "*"},
      {"ld.local", "*"},
      {"ld.local.v2", "*"},
      {"ld.local.v4", "*"},
      {"ld.param", "*"},
      {"ld.param.v2", "*"},
      {"ld.param.v4", "*"},
      {"ld.shared", "*"},
      {"ld.shared.v2", "*"},
      {"ld.shared.v4", "*"},
      {"ld.v2", "*"},
      {"ld.v4", "*"},
      {"ldmatrix.sync.aligned.m8n8.x4.trans.shared", "b16"},
      {"lg2.approx.ftz", "f32"},
      {"mad.lo", "s32 u32 s64 u64"},
      {"mapa", "u64"},
      {"max", "s32 u32 s64 u64 f32 f64"},
      {"mbarrier.arrive.shared.cta", "b64"},
      {"mbarrier.expect_tx.relaxed.cta.shared.cta", "b64"},
      {"mbarrier.init.shared.cta", "b64"},
      {"mbarrier.try_wait.parity.shared.cta", "b64"},
      {"membar.gl", ""},
      {"min", "s32 u32 s64 u64 f32 f64"},
      {"mma.sync.aligned.m16n8k16.row.col", "f32>bf16>bf16>f32 f32>f16>f16>f32"},
      {"mma.sync.aligned.m16n8k32.row.col", "s32>s8>u8>s32"},
      {"mov", "*"},
      {"mul.hi", "s32 u32"},
      {"mul.lo", "s16 u16 s32 u32 s64 u64"},
      {"mul.rn", "f32 f64"},
      {"mul.wide", "s16 u16 s32 u32"},
      {"neg", "s16 s32 s64 f32 f64"},
      {"not", "pred b16 b32 b64"},
      {"or", "pred b16 b32 b64"},
      {"popc", "b32"},
      {"prmt", "b32"},
      {"rcp.approx.ftz", "f32 f64"},
      {"rcp.rn", "f32 f64"},
      {"red.global.add", "u32 u64"},
      {"rem", "s32 u32 s64 u64"},
      {"ret", ""},
      {"rsqrt.approx.ftz", "f32"},
      {"selp", "*"},
      {"shf.l.wrap", "b32"},
      {"shf.r.wrap", "b32"},
      {"shfl.sync.bfly", "b32"},
      {"shfl.sync.idx", "b32"},
      {"shl", "b16 b32 b64"},
      {"shr", "b16 s16 u16 b32 s32 u32 b64 s64 u64"},
      {"sqrt.rn", "f32 f64"},
      {"st", "*"},
      {"st.global", "*"},
      {"st.global.v2", "*"},
      {"st.global.v4", "*"},
      {"st.local", "*"},
      {"st.local.v2", "*"},
      {"st.local.v4", "*"},
      {"st.param", "*"},
      {"st.shared", "*"},
      {"st.shared.v2", "*"},
      {"st.shared.v4", "*"},
      {"sub", "s16 u16 s32 u32 s64 u64 f16x2"},
      {"sub.rn", "f32 f64"},
      {"trap", ""},
      {"vote.sync.ballot", "b32"},
      {"xor", "pred b16 b32 b64"},
  };
  Opcode form, types;
  for (const std::string& part : opcode) {
    (form.empty() || ParseType(part) == Type::kNone ? form : types).push_back(part);
  }
  // setp has as many forms as comparisons, each perhaps with the combination by a predicate.
  if (form[0] == "setp") {
    const bool is_combined = form.size() == 3;
    return types.size() == 1 && types[0] != "f16" && types[0] != "f16x2" && types[0] != "bf16" &&
           (form.size() == 2 ||
            (is_combined && (form[2] == "and" || form[2] == "or" || form[2] == "xor")));
  }
  const auto known = kForms->find(absl::StrJoin(form, "."));
  if (known == kForms->end()) return false;
  if (known->second == "*") return !types.empty();
  const std::vector<std::string> served = absl::StrSplit(known->second, ' ');
  return std::ranges::find(served, absl::StrJoin(types, ">")) != served.end();
}

}  // namespace lssar::ptx
