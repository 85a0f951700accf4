// Decodes launch tables: stdin holds frames of a length (8 bytes) and so many bytes. Prints for
// each "ok KERNELS LAUNCHES", or why it is refused. Every expression of a table that is taken is
// evaluated with all symbols 3, so that a sanitizer sees what a run would read.
#include <stdint.h>

#include <iostream>
#include <string>
#include <vector>

#include "table.h"

using stitch::cuda::Decode;
using stitch::cuda::Table;

namespace {

int64_t Touch(const stitch::Program& program, const std::vector<int64_t>& symbols) {
  int64_t value = 0;
  return Evaluate(program, symbols.data(), &value) ? value : -1;
}

int64_t TouchAll(const Table& table) {
  std::vector<int64_t> symbols(table.symbols + 1, 3);
  int64_t sum = Touch(table.arena, symbols);
  for (const auto& program : table.inputs) sum ^= Touch(program, symbols);
  for (const auto& program : table.outputs) sum ^= Touch(program, symbols);
  for (const auto& region : table.regions) {
    sum ^= Touch(region.offset, symbols) ^ Touch(region.bytes, symbols);
  }
  for (const auto& module : table.modules) {
    for (const auto& cubin : module.cubins) sum ^= table.blob.at(cubin.offset + cubin.size - 1);
  }
  for (const auto& launch : table.launches) {
    sum ^= Touch(launch.grid, symbols) ^ table.kernels.at(launch.kernel).module;
    for (const auto& word : launch.words) {
      if (word.kind == stitch::cuda::WordKind::kValue) sum ^= Touch(word.value, symbols);
    }
  }
  return sum;
}

}  // namespace

int main() {
  volatile int64_t seen = 0;
  for (uint64_t size = 0; std::cin.read(reinterpret_cast<char*>(&size), sizeof size);) {
    std::vector<char> bytes(size);  // exactly as long, so that one byte more is found
    std::cin.read(bytes.data(), static_cast<std::streamsize>(size));
    Table table;
    std::string error;
    if (!Decode(bytes.data(), bytes.size(), &table, &error)) {
      std::cout << error << "\n";
      continue;
    }
    seen = seen ^ TouchAll(table);
    std::cout << "ok " << table.kernels.size() << " " << table.launches.size() << "\n";
  }
}
