// The GPU part of the StitchedFusion kernel without TensorFlow: programs are registered as the job
// side does, and run as the kernel runs them, scratch from an allocator that counts.
#include <stdio.h>
#include <string.h>

#include "exports.h"
#include "gpu.h"

namespace {

struct Scratch {
  uint64_t address, bytes;
  int taken, released;
};

uint64_t Take(void* user, uint64_t bytes) {
  auto* scratch = static_cast<Scratch*>(user);
  scratch->taken++;
  return bytes <= scratch->bytes ? scratch->address : 0;
}

void GiveBack(void* user, uint64_t) { static_cast<Scratch*>(user)->released++; }

}  // namespace

// 1 and `error` empty when the program was put into the stream; -1: there is no such program.
extern "C" __attribute__((visibility("default"))) int run_on_gpu(
    const char* key, void* stream, const StitchBuffer* buffers, int inputs, int outputs,
    const int64_t* symbols, int symbol_count, Scratch* scratch, char* error, size_t error_size) {
  StitchProgram* program = stitch::FindProgram(key);
  if (program == nullptr) return -1;
  stitch::GpuBuffers given{buffers, inputs, buffers + inputs, outputs};
  StitchAllocator allocator{Take, GiveBack, scratch};
  std::string why =
      stitch::RunOnGpu(program, stream, given, symbols, symbol_count, allocator);
  snprintf(error, error_size, "%s", why.c_str());
  return why.empty();
}
