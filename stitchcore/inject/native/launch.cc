#include "launch.h"

namespace stitch {
namespace {

constexpr int64_t kMaxEntries = 1 << 16;

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
