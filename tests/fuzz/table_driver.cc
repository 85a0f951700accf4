// Reads launch tables as a job does, under sanitizers: `cpu` or `cuda` on the command line, frames
// of a length (8 bytes) and so many bytes on stdin, a byte back for each. Every expression of a
// table that is taken is evaluated, at sizes that a job may have and at those that nobody has.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "cuda/table.h"
#include "launch.h"

namespace {

constexpr int64_t kSizes[] = {0, 1, 3, -1, INT32_MAX, INT64_MAX, INT64_MIN};

using Programs = std::vector<const stitch::Program*>;

void Touch(const Programs& programs, size_t symbols) {
  for (int64_t size : kSizes) {
    std::vector<int64_t> values(symbols, size);
    for (const auto* program : programs) {
      int64_t value = 0;
      (void)stitch::Evaluate(*program, values.data(), &value);
    }
  }
}

// Two bytes say how many inputs and outputs the operation has; words follow.
bool Cpu(const std::vector<char>& bytes) {
  if (bytes.size() < 2) return false;
  std::vector<int64_t> words((bytes.size() - 2) / sizeof(int64_t));
  if (!words.empty()) memcpy(words.data(), bytes.data() + 2, words.size() * sizeof(int64_t));
  stitch::Table table;
  std::string error;
  int inputs = bytes[0] & 7, outputs = bytes[1] & 7;
  if (!stitch::Decode(words.data(), words.size(), inputs, outputs, &table, &error)) return false;
  Programs programs{&table.scratch};
  for (const auto& task : table.tasks) programs.push_back(&task);
  for (const auto& result : table.results) {
    for (const auto& dim : result.shape) programs.push_back(&dim);
  }
  for (const auto& guard : table.guards) {
    for (const auto& dim : guard.shape) programs.push_back(&dim);
  }
  Touch(programs, table.symbols.size());
  return true;
}

bool Cuda(const std::vector<char>& bytes) {
  stitch::cuda::Table table;
  std::string error;
  if (!stitch::cuda::Decode(bytes.data(), bytes.size(), &table, &error)) return false;
  Programs programs{&table.arena};
  for (const auto& one : table.inputs) programs.push_back(&one);
  for (const auto& one : table.outputs) programs.push_back(&one);
  for (const auto& region : table.regions) {
    programs.push_back(&region.offset);
    programs.push_back(&region.bytes);
  }
  for (const auto& launch : table.launches) {
    (void)table.kernels.at(launch.kernel);
    programs.push_back(&launch.grid);
    for (const auto& word : launch.words) {
      if (word.kind == stitch::cuda::WordKind::kValue) programs.push_back(&word.value);
    }
  }
  volatile char last = 0;
  for (const auto& module : table.modules) {
    for (const auto& cubin : module.cubins) last = table.blob.at(cubin.offset + cubin.size - 1);
  }
  (void)last;
  Touch(programs, table.symbols);
  return true;
}

}  // namespace

int main(int, char** arguments) {
  bool cuda = strcmp(arguments[1], "cuda") == 0;
  for (uint64_t size = 0; fread(&size, sizeof size, 1, stdin) == 1;) {
    std::vector<char> bytes(size);  // exactly as long, so that one byte more is found
    if (size > 0 && fread(bytes.data(), size, 1, stdin) != 1) return 1;
    fputc((cuda ? Cuda(bytes) : Cpu(bytes)) ? '+' : '-', stdout);
    fflush(stdout);
  }
}
