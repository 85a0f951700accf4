// What one launch costs the host, and whether it allocates: the job's way into the launch library
// under a driver whose calls return at once. Arguments: a table, its symbol, buffers of each side,
// runs. Prints nanoseconds a run (the least of ten stretches) and allocations of all runs.
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "cuda/context.h"
#include "gpu.h"

namespace {

int64_t allocations = 0, launches = 0;

using stitch::cuda::Address;
using stitch::cuda::Context;
using stitch::cuda::Device;
using stitch::cuda::Event;
using stitch::cuda::Function;
using stitch::cuda::kMajor;
using stitch::cuda::kMaxThreads;
using stitch::cuda::kMultiProcessService;
using stitch::cuda::Module;
using stitch::cuda::Result;
using stitch::cuda::Stream;

template <typename Handle>
Handle Some() { return reinterpret_cast<Handle>(uintptr_t{64}); }

// All that a run needs to hear; the rest succeeds and says nothing.
void FillIn(stitch::cuda::Driver* driver) {
#define SUCCEEDS(name, symbol, parameters) driver->name = [] parameters -> Result { return 0; };
  STITCH_DRIVER_FUNCTIONS(SUCCEEDS)
#undef SUCCEEDS
  driver->version = 12090;
  driver->CtxGetCurrent = [](Context* context) { return *context = Some<Context>(), 0; };
  driver->CtxGetId = [](Context, unsigned long long* id) { return *id = 1, 0; };
  driver->StreamGetId = [](Stream, unsigned long long* id) { return *id = 1, 0; };
  driver->CtxGetDevice = [](Device* device) { return *device = 0; };
  driver->DeviceGetAttribute = [](int* value, int attribute, Device) {
    return *value = attribute == kMajor ? 9 : attribute == kMultiProcessService ? 0 : 1 << 17, 0;
  };
  driver->StreamIsCapturing = [](Stream, int* status) { return *status = 0; };
  driver->ModuleLoadData = [](Module* module, const void*) { return *module = Some<Module>(), 0; };
  driver->ModuleGetFunction = [](Function* function, Module, const char*) {
    return *function = Some<Function>(), 0;
  };
  driver->FuncGetAttribute = [](int* value, int attribute, Function) {
    return *value = attribute == kMaxThreads ? 1024 : 0, 0;
  };
  driver->OccupancyMaxActiveBlocksPerMultiprocessor = [](int* blocks, Function, int, size_t) {
    return *blocks = 1, 0;
  };
  driver->MemAlloc = [](Address* address, size_t) { return *address = 1 << 20, 0; };
  driver->LaunchKernel = [](Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, Stream, void**, void**) { return launches++, 0; };
  driver->LaunchCooperativeKernel = [](Function, unsigned, unsigned, unsigned, unsigned, unsigned,
                                       unsigned, unsigned, Stream,
                                       void**) { return launches++, 0; };
}

void Require(int result, const StitchError& error) {
  if (result == STITCH_OK) return;
  fprintf(stderr, "%d %s\n", result, error.text);
  exit(1);
}

uint64_t Allocate(void*, uint64_t) { return 1 << 24; }
void Release(void*, uint64_t) {}

}  // namespace

void* operator new(size_t bytes) {
  allocations++;
  void* memory = malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }

int main(int count, char** arguments) {
  if (count != 5) return 2;
  std::ifstream file(arguments[1], std::ios::binary);
  std::string table{std::istreambuf_iterator<char>(file), {}};
  const int64_t symbol = atoll(arguments[2]);
  const int buffers = atoi(arguments[3]), runs = atoi(arguments[4]) / 10;
  StitchCuda cuda;
  FillIn(&cuda.driver);
  StitchError error{};
  StitchProgram* program = nullptr;
  Require(stitch_program_load(&cuda, table.data(), table.size(), &program, &error), error);
  Require(stitch_program_prepare(program, -1, &error), error);
  std::vector<StitchBuffer> given(2 * buffers, StitchBuffer{1 << 20, UINT64_MAX});
  const stitch::GpuBuffers both{given.data(), buffers, given.data() + buffers, buffers};
  const StitchAllocator allocator{Allocate, Release, nullptr};
  auto run = [&] {
    std::string why = stitch::RunOnGpu(program, nullptr, both, &symbol, 1, allocator);
    if (why.empty()) return;
    fprintf(stderr, "%s\n", why.c_str());
    exit(1);
  };
  run();  // the stream's barrier word
  allocations = launches = 0;
  double least = 1e30;
  for (int stretch = 0; stretch < 10; stretch++) {
    auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; i++) run();
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    least = std::min(least, took.count() / runs);
  }
  int64_t counted = allocations;
  printf("%.0f %lld %lld\n", least, static_cast<long long>(counted),
         static_cast<long long>(launches));
  Require(stitch_program_unload(program, &error), error);
  return 0;
}
