// Many threads run programs at once, on streams of their own, in two primary contexts and with a
// program that others use too: for sanitizers and valgrind. Arguments: the stand-in, a table,
// threads, runs. Prints what the stand-in complains of; 0 where that and what is left are nothing.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "stitch_launch.h"

namespace {

constexpr int kDevices = 2;
constexpr int64_t kRows = 8;
std::atomic<int> failures{0};
std::atomic<int64_t> barriers{0};
void* standin = nullptr;

template <typename... Arguments>
int Do(const char* name, Arguments... arguments) {
  auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(standin, name));
  return function(arguments...);
}

void Require(int result, const char* what, const StitchError* error) {
  if (result == 0) return;
  failures++;
  fprintf(stderr, "%s: %d %s\n", what, result, error != nullptr ? error->text : "");
}

// A grid barrier leaves the low bits as they were and turns the high one.
void Ran(const char*, const uint64_t* words, size_t bytes, unsigned, unsigned, unsigned,
         int cooperative) {
  if (!cooperative || bytes < 40) return;
  auto* word = reinterpret_cast<uint32_t*>(words[4]);
  if ((*word & 0x7fffffff) != 0) failures++;
  *word ^= 0x80000000u;
  barriers++;
}

struct Memory {
  StitchBuffer buffers[3];
};

void RunOne(StitchProgram* program, int device, void* stream, const Memory& memory) {
  StitchError error{};
  StitchChecks* checks = nullptr;
  StitchCall call{};
  call.device = device;
  call.launches = -1;
  call.symbol_count = call.input_count = call.output_count = 1;
  call.stream = stream;
  call.symbols = &kRows;
  call.inputs = &memory.buffers[0];
  call.outputs = &memory.buffers[1];
  call.arena = memory.buffers[2];
  call.checks = &checks;
  Require(stitch_run(program, &call, &error), "run", &error);
  StitchCheck found{};
  if (checks != nullptr) Require(stitch_checks_wait(checks, &found, &error), "wait", &error);
  if (found.launch != -1) failures++;
  // Without checks nobody waits: copies of words are under way in numbers.
  call.first_launch = 2;
  for (int i = 0; i < 3; i++) Require(stitch_run(program, &call, &error), "stretch", &error);
}

void Work(StitchCuda* cuda, StitchProgram* shared, const std::string& table, int number,
          int runs) {
  int device = number % kDevices;
  void *context = nullptr, *stream = nullptr;
  Require(Do<void**, int>("cuDevicePrimaryCtxRetain", &context, device), "retain", nullptr);
  Require(Do<void*>("cuCtxPushCurrent_v2", context), "push", nullptr);
  Require(Do<void**, unsigned>("cuStreamCreate", &stream, 1), "stream", nullptr);
  if (number % 3 == 0) stream = reinterpret_cast<void*>(uintptr_t{2});
  Memory memory{};
  for (StitchBuffer& one : memory.buffers) {
    unsigned long long address = 0;
    one.bytes = 65536;
    Require(Do<unsigned long long*, size_t>("cuMemAlloc_v2", &address, one.bytes), "memory",
            nullptr);
    one.address = address;
  }
  StitchError error{};
  for (int i = 0; i < runs; i++) {
    RunOne(shared, i % 2 == 0 ? -1 : device, stream, memory);
    if (i % 4 != 0) continue;
    StitchProgram* own = nullptr;
    Require(stitch_program_load(cuda, table.data(), table.size(), &own, &error), "load", &error);
    RunOne(own, device, stream, memory);
    Require(stitch_program_unload(own, &error), "unload", &error);
  }
  Do<>("cuCtxSynchronize");
  for (const StitchBuffer& one : memory.buffers) {
    Do<unsigned long long>("cuMemFree_v2", one.address);
  }
  Do<void**>("cuCtxPopCurrent_v2", &context);
  Do<int>("cuDevicePrimaryCtxRelease_v2", device);
}

}  // namespace

int main(int, char** arguments) {
  standin = dlopen(arguments[1], RTLD_NOW);
  std::ifstream file(arguments[2], std::ios::binary);
  std::string table{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  int threads = atoi(arguments[3]), runs = atoi(arguments[4]);
  Do<int, int, int, int, int, int, int, int>("standin_devices", kDevices, 9, 0, 4, 1, 0, 12090,
                                             232448);
  Do<decltype(&Ran)>("standin_callback", &Ran);
  StitchError error{};
  StitchCuda* cuda = nullptr;
  StitchProgram* shared = nullptr;
  Require(stitch_cuda_open(arguments[1], &cuda, &error), "open", &error);
  Require(stitch_program_load(cuda, table.data(), table.size(), &shared, &error), "load", &error);
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++) {
    all.emplace_back([&, i] { Work(cuda, shared, table, i, runs); });
  }
  for (std::thread& one : all) one.join();
  Require(stitch_program_unload(shared, &error), "unload", &error);
  Require(stitch_cuda_close(cuda, &error), "close", &error);
  int64_t live[6];
  Do<int64_t*>("standin_live", live);
  for (int64_t one : live) failures += one != 0;
  auto errors = reinterpret_cast<char* (*)()>(dlsym(standin, "standin_errors"))();
  printf("%s%ld barriers\n", errors, static_cast<long>(barriers.load()));
  failures += errors[0] != 0;
  free(errors);
  return failures == 0 ? 0 : 1;
}
