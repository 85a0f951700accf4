// The launch table of a StitchedFusion node (docs/contracts.md section 3), decoded once when the
// kernel object is made. Pure C++: knows nothing of TensorFlow, so it is tested on its own.
#ifndef STITCH_LAUNCH_H_
#define STITCH_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "expression.h"

namespace stitch {

constexpr int kMaxRank = 16;

struct Symbol {
  int input;  // op input whose dimension defines it
  int axis;
  int64_t scale, offset;
};

enum class Kind : int { kTensor = 0, kVariable = 1 };

struct Operand {
  Kind kind;
  int position;  // op input
};

struct Result {
  Kind kind;
  int position;  // op output, or the op input that holds the variable
  std::vector<Program> shape;
};

struct Alias {
  int operand, result;
};

struct Guard {
  int input;
  std::vector<Program> shape;
};

struct Table {
  std::vector<Symbol> symbols;
  std::vector<Operand> operands;
  std::vector<Result> results;
  std::vector<Alias> aliases;
  std::vector<Guard> guards;
  Program scratch;
  std::vector<Program> tasks;
};

// Decodes `words`; returns false and says why in `error` when anything is out of range.
bool Decode(const int64_t* words, size_t count, int inputs, int outputs, Table* table,
            std::string* error);

}  // namespace stitch

#endif  // STITCH_LAUNCH_H_
