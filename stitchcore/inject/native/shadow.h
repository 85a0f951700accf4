// A kernel against TensorFlow's own results on the job's inputs, before any step depends on it.
// Results go to memory that is given back afterwards, a slice of the tasks at a time where all of
// it would be much. Pure C++: knows nothing of TensorFlow but its numbers of types.
#ifndef STITCH_SHADOW_H_
#define STITCH_SHADOW_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels.h"

namespace stitch {

struct ShadowInput {
  int type;  // a TF_DataType
  const void* data;
  size_t bytes;
  double unit;  // that it is rounded to on its way to a result, relative; 0: its type's
  const float* moved = nullptr;  // by element, what a ShadowResult's was, where a kernel made it
};

struct ShadowResult {
  int type;
  size_t bytes;
  bool compared;       // TensorFlow has it too
  const void* theirs;  // its value; nullptr until it is fetched
  void* kept;          // where the kernel's own goes, for whoever reads it later; else nullptr
  double tolerance;    // relative; 0: what is ordinary for the type
  std::vector<float>* moved = nullptr;  // of what is kept: to be how far each element moves by
                                        // another rounding, where that is asked
};

struct Shadow {
  Kernel kernel;
  std::vector<ShadowInput> inputs;
  std::vector<ShadowResult> results;
  const int64_t* symbols;
  size_t scratch;
  std::vector<int64_t> tasks;  // of each phase
  size_t budget;               // bytes that it may hold at once, where slices can do that
  bool wrong;                  // a fault on purpose: the first value that is compared
  // Runs the tasks [begin, end) of a phase on the caller's threads; 0, or a failed check.
  std::function<int64_t(void* const* buffers, char* scratch, int64_t phase, int64_t begin,
                        int64_t end)> run;
  // Computes TensorFlow's values of some results, and may let go of the others': false where it
  // cannot. Not called while all are there.
  std::function<bool(const std::vector<size_t>& numbers, std::vector<ShadowResult>* results)> fetch;
};

enum class Proof { kAgrees, kDiffers, kUndecided };

// `said` tells of the first value that differs. Where a value is beyond its tolerance the kernel is
// run again on inputs that are moved by their rounding, and with other rounding of what it
// computes: as far as its results move then, TensorFlow's may lie too (docs/judging.md).
// Undecided: there is no memory, or a check of the kernel has failed.
Proof Compare(Shadow shadow, std::string* said);

// What a shadow may hold: a small share of what the process has resident.
size_t ShadowBudget();

}  // namespace stitch

#endif  // STITCH_SHADOW_H_
