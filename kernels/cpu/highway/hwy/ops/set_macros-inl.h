// Before Highway's own file of this name: compiles the target AVX3_DL for AVX-512 with VNNI and
// nothing else. Highway compiles it for VBMI, VAES and more, which Cascade Lake and Cooper Lake do
// not have; of all that, kernels/cpu uses VNNI alone, in assembly. A Highway function that needs
// the rest does not compile here. instruction_set.cc asks the machine for the same.
// No include guard: Highway includes its file once per target.
#include_next "hwy/ops/set_macros-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3
#endif
