// What each PTX operation computes. `type` and modifiers: of the instruction.
#ifndef LSSAR_TESTS_PTX_OPERATIONS_H_
#define LSSAR_TESTS_PTX_OPERATIONS_H_

#include <string>
#include <vector>

#include "tests/ptx/program.h"

namespace lssar::ptx {

// The parts of an opcode: "mul.wide.s32" is {"mul", "wide", "s32"}; "shared::cta" is two parts.
using Opcode = std::vector<std::string>;
bool Has(const Opcode& opcode, const char* part);

// Operations whose operands are one register to and 1 to 4 from. num_from: how many. null: not one
// of them.
// forms.cc. False: an operation, or a rounding, saturation or type of one, that is not computed.
bool IsKnownForm(const Opcode& opcode);
RunFn PlainOperation(const Opcode& opcode, Type type, int* num_from);

// mode of cvt
enum Rounding { kAsIs, kNearest, kToIntTowardsZero, kToIntNearest };
// mode of setp: a comparison, plus 16 * how it is combined with a predicate.
enum Combination { kAlone, kAnd, kOr, kXor };
int ParseComparison(const std::string& name);  // -1: none

// The others.
void Convert(Warp&, const Instruction&, uint32_t);
void SetPredicate(Warp&, const Instruction&, uint32_t);
void Move(Warp&, const Instruction&, uint32_t);
void PackVector(Warp&, const Instruction&, uint32_t);
void UnpackVector(Warp&, const Instruction&, uint32_t);
void ReadSpecial(Warp&, const Instruction&, uint32_t);
void ToGeneric(Warp&, const Instruction&, uint32_t);
void FromGeneric(Warp&, const Instruction&, uint32_t);
void MapToRank(Warp&, const Instruction&, uint32_t);
void Load(Warp&, const Instruction&, uint32_t);
void Store(Warp&, const Instruction&, uint32_t);
void Atomic(Warp&, const Instruction&, uint32_t);        // mode: 0 add, 1 or
void ShuffleLanes(Warp&, const Instruction&, uint32_t);  // mode: 0 bfly, 1 idx
void BallotLanes(Warp&, const Instruction&, uint32_t);
void WarpBarrier(Warp&, const Instruction&, uint32_t);
void Multiply16x8x16(Warp&, const Instruction&, uint32_t);  // mode: 0 fp16, 1 bf16
void Multiply16x8x32(Warp&, const Instruction&, uint32_t);  // bytes
void LoadMatrices(Warp&, const Instruction&, uint32_t);
void StartCopy(Warp&, const Instruction&, uint32_t);
void CommitGroup(Warp&, const Instruction&, uint32_t);
void WaitGroups(Warp&, const Instruction&, uint32_t);
void InitByteBarrier(Warp&, const Instruction&, uint32_t);
void ExpectBytes(Warp&, const Instruction&, uint32_t);
void ArriveAtByteBarrier(Warp&, const Instruction&, uint32_t);
void StartBulkCopy(Warp&, const Instruction&, uint32_t);
void TestByteBarrier(Warp&, const Instruction&, uint32_t);
void WaitForPrevious(Warp&, const Instruction&, uint32_t);
void Nothing(Warp&, const Instruction&, uint32_t);
void TrapHere(Warp&, const Instruction&, uint32_t);

}  // namespace lssar::ptx

#endif  // LSSAR_TESTS_PTX_OPERATIONS_H_
