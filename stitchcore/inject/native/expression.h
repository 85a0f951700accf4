// Integer expressions over symbols, and the words they are read from: what the launch tables of the
// CPU (launch.h) and of the GPU (cuda/table.h) share. The code is loop_ir/index.py's `postfix`.
#ifndef STITCH_EXPRESSION_H_
#define STITCH_EXPRESSION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stitch {

// A postfix integer program over the symbols; most are one constant. Codes: 0 push the value, 1
// push the symbol of that number, 2..9 apply + * // % min max - ceil-div to the two topmost
// entries.
struct Program {
  bool is_constant = false;
  int64_t constant = 0;
  std::vector<int64_t> code;  // (code, value) pairs
};

// Reads words one by one; after the first failure every further read fails too.
class Reader {
 public:
  Reader(const int64_t* words, size_t count) : words_(words), count_(count) {}

  int64_t Next() {
    if (position_ >= count_) return Fail("table ends early"), 0;
    return words_[position_++];
  }
  int64_t Next(int64_t low, int64_t high, const char* what) {
    int64_t word = Next();
    if (ok() && (word < low || word > high)) Fail(what);
    return ok() ? word : low;
  }
  void Fail(const char* what) {
    if (error_.empty()) error_ = std::string(what) + " at word " + std::to_string(position_);
  }
  bool ok() const { return error_.empty(); }
  bool at_end() const { return position_ == count_; }
  const std::string& error() const { return error_; }

 private:
  const int64_t* words_;
  size_t count_, position_ = 0;
  std::string error_;
};

// Reads [length, (code, value)...] over `symbols` symbols; what is not of that form fails `reader`.
Program ReadProgram(Reader* reader, size_t symbols);

// Value of `program`; false on overflow, division by zero or a negative operand of //, % and
// ceil-div.
bool Evaluate(const Program& program, const int64_t* symbols, int64_t* value);

}  // namespace stitch

#endif  // STITCH_EXPRESSION_H_
