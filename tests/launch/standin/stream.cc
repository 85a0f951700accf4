// The stand-in's streams, events, copies and launches.
#include <string.h>

#include <algorithm>
#include <iterator>

#include "standin.h"

namespace standin {

Stream* Find(void* handle, const char* name) {
  State& state = Get();
  if (handle == nullptr) return state.default_streams[Current()].get();
  if (handle == reinterpret_cast<void*>(2)) {
    thread_local std::map<void*, void*> own;  // this thread's stream, by context
    void*& named = own[Current()];
    if (state.streams.count(named) == 0) {
      named = NewHandle();
      state.streams[named] = std::make_unique<Stream>();
      state.streams[named]->context = Current();
      state.streams[named]->id = state.next++;
    }
    handle = named;
  }
  auto found = state.streams.find(handle);
  if (found == state.streams.end()) {
    return Complain(std::string(name) + " on no stream"), nullptr;
  }
  if (found->second->context != Current()) {
    return Complain(std::string(name) + " on a stream of another context"), nullptr;
  }
  return found->second.get();
}

void Push(Stream* stream, Operation operation) {
  if (stream->capture == 1) {
    stream->captured.push_back(std::move(operation));
    return;
  }
  stream->queue.push_back(std::move(operation));
  stream->issued++;
}

void Drain(Stream* stream) {
  while (!stream->queue.empty()) {
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    operation.run();
    stream->done++;
  }
}

void DrainContext(void* context) {
  for (auto& [handle, stream] : Get().streams) {
    if (stream->context == context) Drain(stream.get());
  }
  auto found = Get().default_streams.find(context);
  if (found != Get().default_streams.end()) Drain(found->second.get());
}

namespace {

// The block of device or pinned memory that holds [address, address + bytes); nullptr and a
// complaint where there is none.
template <typename Blocks>
const Block* Holding(const Blocks& blocks, uintptr_t address, size_t bytes, const char* what) {
  for (auto& [begin, block] : blocks) {
    auto first = (uintptr_t)begin;
    if (address >= first && bytes <= block.bytes && address - first <= block.bytes - bytes) {
      return &block;
    }
  }
  return Complain(std::string(what) + " outside any block"), nullptr;
}

void* PinnedOf(const void* address) {
  for (auto& [begin, block] : Get().pinned) {
    auto at = static_cast<const char*>(address) - static_cast<const char*>(begin);
    if (at >= 0 && static_cast<size_t>(at) < block.bytes) return begin;
  }
  return nullptr;
}

Result Copy(const char* name, void* to, const void* from, size_t bytes, void* handle, bool up) {
  Stream* stream = Find(handle, name);
  if (stream == nullptr) return kInvalidHandle;
  auto device = reinterpret_cast<uintptr_t>(up ? to : from);
  auto host = reinterpret_cast<uintptr_t>(up ? from : to);
  const Block* block = Holding(Get().memory, device, bytes, name);
  if (block == nullptr || Holding(Get().pinned, host, bytes, "asynchronous copy of memory") ==
                              nullptr) {
    return kInvalidValue;
  }
  if (block->context != stream->context) Complain(std::string(name) + " to another context");
  auto run = [=] {
    const Block* held = Holding(Get().pinned, host, bytes, "late copy of pinned memory");
    if (held != nullptr && Holding(Get().memory, device, bytes, "late copy") != nullptr) {
      memcpy(to, from, bytes);
    }
  };
  Push(stream, {run, {PinnedOf(reinterpret_cast<void*>(host))}, nullptr});
  return kSuccess;
}

int Occupancy(const Function& function, int threads, size_t dynamic) {
  const KernelImage& image = function.image;
  size_t shared = image.shared_bytes + dynamic + 1024;
  int blocks = std::min(32, 2048 / threads);
  int warps = (threads + 31) / 32;
  if (image.registers > 0) blocks = std::min(blocks, 65536 / (image.registers * 32 * warps));
  return std::min<int>(blocks, static_cast<int>(233472 / shared));
}

Result Launch(const char* name, void* handle, const unsigned* grid, const unsigned* block,
              unsigned shared, void* stream_handle, void** parameters, bool cooperative) {
  State& state = Get();
  auto found = state.functions.find(handle);
  if (found == state.functions.end()) return Complain("launch of no function"), kInvalidHandle;
  Function& function = found->second;
  Stream* stream = Find(stream_handle, name);
  if (stream == nullptr) return kInvalidHandle;
  if (state.modules[function.module].context != stream->context) {
    return Complain("launch in another context than the module's"), kInvalidHandle;
  }
  int threads = static_cast<int>(block[0] * block[1] * block[2]);
  if (grid[0] == 0 || grid[1] != 1 || grid[2] != 1 || grid[0] > INT32_MAX || threads < 1) {
    return Complain("grid or block out of range"), kInvalidValue;
  }
  if (threads > function.image.max_threads) return kTooManyResources;
  if (static_cast<int>(shared) > function.dynamic_limit) {
    return Complain("more dynamic shared memory than was asked for"), kInvalidValue;
  }
  const DeviceLimits& device = state.devices[state.contexts[stream->context].device];
  int64_t resident = int64_t{Occupancy(function, threads, shared)} * device.multiprocessors;
  if (cooperative && grid[0] > resident) return kCooperativeTooLarge;
  std::vector<uint64_t> words;
  for (size_t i = 0; i < function.image.parameter_sizes.size(); i++) {
    size_t bytes = function.image.parameter_sizes[i], at = function.image.parameter_offsets[i];
    if (words.size() * 8 < at + bytes) words.resize((at + bytes + 7) / 8);
    memcpy(reinterpret_cast<char*>(words.data()) + at, parameters[i], bytes);
  }
  auto run = [=, kernel = function.name, blocks = grid[0]] {
    if (Get().functions.count(handle) == 0) Complain("a kernel runs after its module has gone");
    if (Get().callback == nullptr) return;
    Get().callback(kernel.c_str(), words.data(), words.size() * 8, blocks,
                   static_cast<unsigned>(threads), shared, cooperative);
  };
  Push(stream, {run, {}, function.module});
  return kSuccess;
}

}  // namespace
}  // namespace standin

using namespace standin;

STANDIN_API cuStreamCreate(void** handle, unsigned) {
  STANDIN_IN_CONTEXT("cuStreamCreate");
  *handle = NewHandle();
  if (!Get().spare_streams.empty()) {
    *handle = Get().spare_streams.back();
    Get().spare_streams.pop_back();
  }
  Get().streams[*handle] = std::make_unique<Stream>();
  Get().streams[*handle]->context = Current();
  Get().streams[*handle]->id = Get().next++;
  return kSuccess;
}

STANDIN_API cuStreamDestroy_v2(void* handle) {
  STANDIN_RELEASE("cuStreamDestroy");
  auto found = Get().streams.find(handle);
  if (found == Get().streams.end()) return Complain("destroyed no stream"), kInvalidHandle;
  Drain(found->second.get());
  Get().streams.erase(found);
  Get().spare_streams.push_back(handle);
  return asked;
}

STANDIN_API cuStreamGetId(void* handle, unsigned long long* id) {
  STANDIN_IN_CONTEXT("cuStreamGetId");
  Stream* stream = Find(handle, "cuStreamGetId");
  if (stream == nullptr) return kInvalidHandle;
  return *id = stream->id, kSuccess;
}

STANDIN_API cuStreamIsCapturing(void* handle, int* status) {
  STANDIN_IN_CONTEXT("cuStreamIsCapturing");
  Stream* stream = Find(handle, "cuStreamIsCapturing");
  if (stream == nullptr) return kInvalidHandle;
  if (handle == nullptr && Captures(Current())) return kCaptureImplicit;
  return *status = stream->capture, kSuccess;
}

STANDIN_API cuStreamSynchronize(void* handle) {
  STANDIN_IN_CONTEXT("cuStreamSynchronize");
  Stream* stream = Find(handle, "cuStreamSynchronize");
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture != 0) {
    return Complain("synchronised a captured stream"), kCaptureUnsupported;
  }
  return Drain(stream), kSuccess;
}

STANDIN_API cuCtxSynchronize() {
  STANDIN_RELEASE("cuCtxSynchronize");
  if (Current() == nullptr) return Complain("synchronised no context"), kInvalidContext;
  if (Captures(Current())) return Complain("synchronised while capturing"), kCaptureUnsupported;
  return DrainContext(Current()), asked;
}

STANDIN_API cuThreadExchangeStreamCaptureMode(int* mode) {
  STANDIN_ENTER("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, CaptureMode());
  return kSuccess;
}

STANDIN_API cuEventCreate(void** event, unsigned) {
  STANDIN_IN_CONTEXT("cuEventCreate");
  *event = NewHandle();
  Get().events[*event].context = Current();
  return kSuccess;
}

STANDIN_API cuEventRecord(void* handle, void* stream_handle) {
  STANDIN_IN_CONTEXT("cuEventRecord");
  auto found = Get().events.find(handle);
  if (found == Get().events.end()) return Complain("recorded no event"), kInvalidHandle;
  Stream* stream = Find(stream_handle, "cuEventRecord");
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture != 0) return Complain("event recorded in a capture"), kCaptureUnsupported;
  Event& event = found->second;
  event.recorded = true;
  event.stream_id = stream->id;
  event.position = stream->issued;
  return kSuccess;
}

namespace {

// The stream that has yet to reach the event; nullptr when it has passed.
Stream* Before(const Event& event) {
  auto waits = [&](const std::unique_ptr<Stream>& stream) {
    return stream->id == event.stream_id && stream->done < event.position;
  };
  for (auto& [handle, stream] : Get().streams) {
    if (waits(stream)) return stream.get();
  }
  for (auto& [handle, stream] : Get().default_streams) {
    if (waits(stream)) return stream.get();
  }
  return nullptr;
}

}  // namespace

STANDIN_API cuEventQuery(void* handle) {
  STANDIN_ENTER("cuEventQuery");
  if (Result refused = Unsafe("cuEventQuery")) return refused;
  auto found = Get().events.find(handle);
  if (found == Get().events.end()) return Complain("asked no event"), kInvalidHandle;
  return Before(found->second) == nullptr ? kSuccess : kNotReady;
}

// Each operation of a stream takes a millisecond.
STANDIN_API cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  STANDIN_ENTER("cuEventElapsedTime");
  auto begun = Get().events.find(start), ended = Get().events.find(end);
  if (begun == Get().events.end() || ended == Get().events.end()) {
    return Complain("time of no event"), kInvalidHandle;
  }
  const Event &first = begun->second, &last = ended->second;
  if (!first.recorded || !last.recorded || first.context != last.context) return kInvalidHandle;
  if (Before(first) != nullptr || Before(last) != nullptr) return kNotReady;
  *milliseconds = static_cast<float>(last.position) - static_cast<float>(first.position);
  return kSuccess;
}

STANDIN_API cuEventSynchronize(void* handle) {
  STANDIN_RELEASE("cuEventSynchronize");
  if (Result refused = Unsafe("cuEventSynchronize")) return refused;
  auto found = Get().events.find(handle);
  if (found == Get().events.end()) return Complain("waited for no event"), kInvalidHandle;
  if (!found->second.recorded) Complain("waited for an event that was not recorded");
  if (Stream* stream = Before(found->second)) Drain(stream);
  return asked;
}

STANDIN_API cuEventDestroy_v2(void* handle) {
  STANDIN_RELEASE("cuEventDestroy");
  if (Get().events.erase(handle) == 0) return Complain("destroyed no event"), kInvalidHandle;
  return asked;
}

STANDIN_API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
  STANDIN_IN_CONTEXT("cuMemcpyHtoDAsync");
  return Copy("cuMemcpyHtoDAsync", reinterpret_cast<void*>(to), from, bytes, stream, true);
}

STANDIN_API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  STANDIN_IN_CONTEXT("cuMemcpyDtoHAsync");
  return Copy("cuMemcpyDtoHAsync", to, reinterpret_cast<void*>(from), bytes, stream, false);
}

STANDIN_API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* handle) {
  STANDIN_IN_CONTEXT("cuMemcpyDtoDAsync");
  const char* name = "cuMemcpyDtoDAsync";
  Stream* stream = Find(handle, name);
  if (stream == nullptr) return kInvalidHandle;
  for (Address address : {to, from}) {
    const Block* block = Holding(Get().memory, address, bytes, name);
    if (block == nullptr) return kInvalidValue;
    if (block->context != stream->context) Complain(std::string(name) + " in another context");
  }
  auto run = [=] {
    if (Holding(Get().memory, to, bytes, "late copy") == nullptr) return;
    if (Holding(Get().memory, from, bytes, "late copy") == nullptr) return;
    memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  };
  Push(stream, {run, {}, nullptr});
  return kSuccess;
}

STANDIN_API cuMemsetD32Async(Address address, unsigned value, size_t count, void* handle) {
  STANDIN_IN_CONTEXT("cuMemsetD32Async");
  Stream* stream = Find(handle, "cuMemsetD32Async");
  if (stream == nullptr) return kInvalidHandle;
  if (Holding(Get().memory, address, 4 * count, "cuMemsetD32Async") == nullptr) {
    return kInvalidValue;
  }
  auto run = [=] {
    if (Holding(Get().memory, address, 4 * count, "late memset") == nullptr) return;
    std::fill_n(reinterpret_cast<unsigned*>(address), count, value);
  };
  Push(stream, {run, {}, nullptr});
  return kSuccess;
}

STANDIN_API cuFuncGetAttribute(int* value, int attribute, void* handle) {
  STANDIN_IN_CONTEXT("cuFuncGetAttribute");
  auto found = Get().functions.find(handle);
  if (found == Get().functions.end()) return Complain("attribute of no function"), kInvalidHandle;
  const KernelImage& image = found->second.image;
  switch (attribute) {
    case 0: return *value = image.max_threads, kSuccess;
    case 1: return *value = static_cast<int>(image.shared_bytes), kSuccess;
    case 3: return *value = 0, kSuccess;
    case 4: return *value = image.registers, kSuccess;
  }
  return Complain("unexpected function attribute"), kInvalidValue;
}

STANDIN_API cuFuncSetAttribute(void* handle, int attribute, int value) {
  STANDIN_IN_CONTEXT("cuFuncSetAttribute");
  auto found = Get().functions.find(handle);
  if (found == Get().functions.end()) return Complain("attribute of no function"), kInvalidHandle;
  Function& function = found->second;
  int limit = Get().devices[Get().contexts[Current()].device].shared_optin;
  if (attribute != 8 || value + static_cast<int>(function.image.shared_bytes) > limit) {
    return Complain("function attribute out of range"), kInvalidValue;
  }
  return function.dynamic_limit = value, kSuccess;
}

STANDIN_API cuFuncGetParamInfo(void* handle, size_t index, size_t* offset, size_t* size) {
  STANDIN_IN_CONTEXT("cuFuncGetParamInfo");
  auto found = Get().functions.find(handle);
  if (found == Get().functions.end()) return Complain("parameter of no function"), kInvalidHandle;
  const KernelImage& image = found->second.image;
  if (index >= image.parameter_sizes.size()) return kInvalidValue;
  *offset = image.parameter_offsets[index];
  *size = image.parameter_sizes[index];
  return kSuccess;
}

STANDIN_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads,
                                                        size_t shared) {
  STANDIN_IN_CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  auto found = Get().functions.find(handle);
  if (found == Get().functions.end()) return Complain("occupancy of no function"), kInvalidHandle;
  if (static_cast<int>(shared) > found->second.dynamic_limit) {
    return Complain("occupancy for more shared memory than was asked for"), kInvalidValue;
  }
  return *blocks = Occupancy(found->second, threads, shared), kSuccess;
}

STANDIN_API cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx,
                           unsigned by, unsigned bz, unsigned shared, void* stream,
                           void** parameters, void** extra) {
  STANDIN_IN_CONTEXT("cuLaunchKernel");
  if (extra != nullptr) Complain("cuLaunchKernel with extra");
  const unsigned grid[] = {x, y, z}, block[] = {bx, by, bz};
  return Launch("cuLaunchKernel", function, grid, block, shared, stream, parameters, false);
}

STANDIN_API cuLaunchCooperativeKernel(void* function, unsigned x, unsigned y, unsigned z,
                                      unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                      void* stream, void** parameters) {
  STANDIN_IN_CONTEXT("cuLaunchCooperativeKernel");
  const unsigned grid[] = {x, y, z}, block[] = {bx, by, bz};
  return Launch("cuLaunchCooperativeKernel", function, grid, block, shared, stream, parameters,
                true);
}
