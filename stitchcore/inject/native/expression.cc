#include "expression.h"

#include <algorithm>

namespace stitch {
namespace {

bool Apply(int64_t code, int64_t left, int64_t right, int64_t* value) {
  switch (code) {
    case 2: return !__builtin_add_overflow(left, right, value);
    case 3: return !__builtin_mul_overflow(left, right, value);
    case 4:
      if (left < 0 || right <= 0) return false;
      return *value = left / right, true;
    case 5:
      if (left < 0 || right <= 0) return false;
      return *value = left % right, true;
    case 6: return *value = std::min(left, right), true;
    case 7: return *value = std::max(left, right), true;
    case 8: return !__builtin_sub_overflow(left, right, value);
    case 9:
      if (left < 0 || right <= 0) return false;
      return *value = left / right + (left % right != 0), true;
  }
  return false;
}

constexpr int kStack = 32;

}  // namespace

Program ReadProgram(Reader* reader, size_t symbols) {
  Program program;
  int64_t length = reader->Next(2, 4096, "program length");
  int depth = 0;
  bool uses_symbols = false;
  for (int64_t i = 0; i + 1 < length && reader->ok(); i += 2) {
    int64_t code = reader->Next(0, 9, "program code"), value = reader->Next();
    if (code == 1) {
      uses_symbols = true;
      if (value < 0 || value >= static_cast<int64_t>(symbols)) reader->Fail("symbol number");
    }
    depth += code <= 1 ? 1 : -1;
    if (depth < 1 || depth > kStack) reader->Fail("program stack");
    program.code.insert(program.code.end(), {code, value});
  }
  if (length % 2 != 0 || depth != 1) reader->Fail("program form");
  if (reader->ok() && !uses_symbols) {
    if (!Evaluate(program, nullptr, &program.constant)) reader->Fail("program value");
    program.is_constant = true;
  }
  return program;
}

bool Evaluate(const Program& program, const int64_t* symbols, int64_t* value) {
  if (program.is_constant) return *value = program.constant, true;
  int64_t stack[kStack];
  int depth = 0;
  for (size_t i = 0; i < program.code.size(); i += 2) {
    int64_t code = program.code[i], operand = program.code[i + 1];
    if (code <= 1) {
      stack[depth++] = code == 0 ? operand : symbols[operand];
    } else {
      depth--;
      if (!Apply(code, stack[depth - 1], stack[depth], &stack[depth - 1])) return false;
    }
  }
  return *value = stack[0], true;
}

}  // namespace stitch
