#include "launch.h"

#include <algorithm>

namespace stitch {
namespace {

constexpr int64_t kMaxEntries = 1 << 16;

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
  }
  return false;
}

constexpr int kStack = 32;

Program ReadProgram(Reader* reader, size_t symbols) {
  Program program;
  int64_t length = reader->Next(2, 4096, "program length");
  int depth = 0;
  bool uses_symbols = false;
  for (int64_t i = 0; i + 1 < length && reader->ok(); i += 2) {
    int64_t code = reader->Next(0, 7, "program code"), value = reader->Next();
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

std::vector<Program> ReadShape(Reader* reader, size_t symbols) {
  std::vector<Program> shape;
  int64_t rank = reader->Next(0, kMaxRank, "rank");
  for (int64_t i = 0; i < rank && reader->ok(); i++) {
    shape.push_back(ReadProgram(reader, symbols));
  }
  return shape;
}

int ReadInput(Reader* reader, int inputs) {
  return static_cast<int>(reader->Next(0, inputs - 1, "op input"));
}

}  // namespace

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

bool Decode(const int64_t* words, size_t count, int inputs, int outputs, Table* table,
            std::string* error) {
  Reader reader(words, count);
  reader.Next(1, 1, "table version");
  auto entries = [&] { return reader.Next(0, kMaxEntries, "entry count"); };
  for (int64_t n = entries(); n > 0 && reader.ok(); n--) {
    Symbol symbol;
    symbol.input = ReadInput(&reader, inputs);
    symbol.axis = static_cast<int>(reader.Next(0, kMaxRank - 1, "axis"));
    symbol.scale = reader.Next(1, INT64_MAX, "scale");
    symbol.offset = reader.Next();
    table->symbols.push_back(symbol);
  }
  size_t symbols = table->symbols.size();
  for (int64_t n = entries(); n > 0 && reader.ok(); n--) {
    auto kind = static_cast<Kind>(reader.Next(0, 1, "operand kind"));
    table->operands.push_back({kind, ReadInput(&reader, inputs)});
  }
  std::vector<bool> produced(outputs, false);
  for (int64_t n = entries(); n > 0 && reader.ok(); n--) {
    Result result;
    result.kind = static_cast<Kind>(reader.Next(0, 1, "result kind"));
    bool tensor = result.kind == Kind::kTensor;
    result.position = static_cast<int>(
        reader.Next(0, (tensor ? outputs : inputs) - 1, "result position"));
    if (tensor && reader.ok()) {
      if (produced[result.position]) reader.Fail("op output produced twice");
      produced[result.position] = true;
    }
    result.shape = ReadShape(&reader, symbols);
    table->results.push_back(std::move(result));
  }
  for (int64_t n = entries(); n > 0 && reader.ok(); n--) {
    int64_t operands = table->operands.size(), results = table->results.size();
    int operand = static_cast<int>(reader.Next(0, operands - 1, "alias operand"));
    table->aliases.push_back(
        {operand, static_cast<int>(reader.Next(0, results - 1, "alias result"))});
  }
  for (int64_t n = entries(); n > 0 && reader.ok(); n--) {
    Guard guard;
    guard.input = ReadInput(&reader, inputs);
    guard.shape = ReadShape(&reader, symbols);
    table->guards.push_back(std::move(guard));
  }
  table->scratch = ReadProgram(&reader, symbols);
  for (int64_t n = entries(); n > 0 && reader.ok(); n--) {
    table->tasks.push_back(ReadProgram(&reader, symbols));
  }
  if (reader.ok() && !reader.at_end()) reader.Fail("words left over");
  for (bool one : produced) {
    if (!one) reader.Fail("op output not produced");
  }
  *error = reader.error();
  return reader.ok();
}

}  // namespace stitch
