// The launch table of a program of CUDA kernels, read from untrusted bytes (docs/contracts.md 12).
#ifndef STITCH_CUDA_TABLE_H_
#define STITCH_CUDA_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../expression.h"

namespace stitch::cuda {

// A parameter of 4096 bytes is what every driver takes.
constexpr int64_t kParameterWords = 512;
constexpr uint64_t kArenaAlignment = 256, kBufferAlignment = 16;

struct Cubin {
  int major, minor;     // of the architecture it was compiled for
  size_t offset, size;  // in Table::blob
};

struct ModuleEntry {
  std::vector<Cubin> cubins;
};

struct KernelEntry {
  std::string name;
  int module, threads, shared_bytes;
  bool cooperative;
  bool capped;     // one wave is enough: tasks are dealt to blocks by grid stride
  int64_t words;   // of its parameter
  int64_t checks;  // how many it has
};

enum class WordKind : int {
  kInput = 0,
  kOutput = 1,
  kRegion = 2,   // the address of a region of the arena
  kValue = 3,    // of an expression
  kBarrier = 4,  // the address of the stream's barrier word
  kChecks = 5,   // the address of the ranges that the launch's checks report
};

struct Word {
  WordKind kind;
  int64_t position = 0;
  Program value;
};

struct LaunchEntry {
  int kernel;
  Program grid;          // blocks; 0 launches nothing
  int64_t words_region;  // where words lie that do not fit a parameter, or -1
  int64_t first_check;   // of the program's checks; -1: has none
  bool has_barrier = false;  // among the words; then the table has a barrier region
  std::vector<Word> words;
};

struct Region {
  Program offset, bytes;
};

struct Table {
  int64_t driver = 0;  // the oldest that loads the cubins, as cuDriverGetVersion counts
  size_t symbols = 0;
  std::vector<Program> inputs, outputs;  // bytes of each
  Program arena;                         // bytes
  std::vector<Region> regions;
  int64_t checks = 0;         // of all launches
  int64_t checks_region = -1;  // 16 bytes a check
  int64_t barrier_region = -1;  // a barrier word for runs that a CUDA graph captures
  std::vector<ModuleEntry> modules;
  std::vector<KernelEntry> kernels;
  std::vector<LaunchEntry> launches;
  std::string blob;
};

// Decodes `size` bytes; false, and why in `error`, when anything is damaged or out of range.
bool Decode(const char* data, size_t size, Table* table, std::string* error);

}  // namespace stitch::cuda

#endif  // STITCH_CUDA_TABLE_H_
