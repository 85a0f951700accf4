#include "context.h"

#include <algorithm>

namespace stitch::cuda {
namespace {

constexpr size_t kLeastPinned = 4096;
constexpr size_t kSlabBytes = 8192, kWordSpacing = 128;  // no two words in one cache line

// Numbers threads from 1, so that one's own default stream has a name.
int ThreadNumber() {
  static std::atomic<int> threads{0};
  thread_local int number = ++threads;
  return number;
}

void Free(const Driver& driver, PinnedBlock* block) {
  if (block->event != nullptr) driver.EventDestroy(block->event);
  if (block->data != nullptr) driver.MemFreeHost(block->data);
}

}  // namespace

Error PinnedPool::Take(const Driver& driver, size_t bytes, std::unique_ptr<PinnedBlock>* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t pending = 0;
  PinnedBlock* oldest = nullptr;
  for (size_t i = 0; i < blocks_.size(); i++) {
    PinnedBlock& one = *blocks_[i];
    if (one.pending && driver.EventQuery(one.event) == kSuccess) one.pending = false;
    if (one.pending) oldest = oldest != nullptr ? oldest : &one, pending++;
    if (one.pending || one.lost || one.bytes < bytes) continue;
    *block = std::move(blocks_[i]);
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    taken_++;
    return {};
  }
  if (pending >= kMostPending) {
    Error error = Judge(driver, driver.EventSynchronize(oldest->event), "cuEventSynchronize");
    if (error.failed()) return error;
    oldest->pending = false;
  }
  auto made = std::make_unique<PinnedBlock>();
  made->bytes = kLeastPinned;
  while (made->bytes < bytes) made->bytes *= 2;
  blocks_.reserve(blocks_.size() + taken_ + 1);
  void* data = nullptr;
  Error error = Judge(driver, driver.MemHostAlloc(&data, made->bytes, 0),
                      "cuMemHostAlloc of " + std::to_string(made->bytes) + " bytes");
  if (error.failed()) return error;
  made->data = static_cast<char*>(data);
  error = Judge(driver, driver.EventCreate(&made->event, kEventDisableTiming), "cuEventCreate");
  if (error.failed()) return Free(driver, made.get()), error;
  *block = std::move(made);
  taken_++;
  return {};
}

void PinnedPool::GiveBack(const Driver& driver, std::unique_ptr<PinnedBlock> block, Stream stream,
                          bool used) {
  if (used) {
    block->pending = driver.EventRecord(block->event, stream) == kSuccess;
    block->lost = !block->pending && driver.StreamSynchronize(stream) != kSuccess;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  blocks_.push_back(std::move(block));
  taken_--;
}

void PinnedPool::GiveBackIdle(std::unique_ptr<PinnedBlock> block) {
  block->pending = false;
  std::lock_guard<std::mutex> lock(mutex_);
  blocks_.push_back(std::move(block));
  taken_--;
}

void PinnedPool::Clear(const Driver& driver) {
  for (auto& block : blocks_) Free(driver, block.get());
  blocks_.clear();
}

Error BarrierWords::Find(const Driver& driver, Stream stream, Address* word) {
  unsigned long long id = 0;
  if (driver.StreamGetId != nullptr) {
    Error error = Judge(driver, driver.StreamGetId(stream, &id), "cuStreamGetId");
    if (error.failed()) return error;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::pair<Stream, int> key{stream, stream == PerThreadStream() ? ThreadNumber() : 0};
  auto found = words_.find(key);
  if (found != words_.end()) {
    if (found->second.stream_id != id) {
      // The handle is a later stream's: work of the one before it may still hold the word.
      Error error = Judge(driver, driver.CtxSynchronize(), "cuCtxSynchronize");
      if (error.failed()) return error;
      found->second.stream_id = id;
    }
    *word = found->second.address;
    return {};
  }
  if (free_.empty()) {
    slabs_.reserve(slabs_.size() + 1);
    free_.reserve(kSlabBytes / kWordSpacing);
    Address slab = 0;
    Error error = Judge(driver, driver.MemAlloc(&slab, kSlabBytes), "cuMemAlloc of barrier words");
    if (error.failed()) return error;
    slabs_.push_back(slab);
    for (size_t at = 0; at < kSlabBytes; at += kWordSpacing) free_.push_back(slab + at);
  }
  Address fresh = free_.back();
  Error error = Judge(driver, driver.MemsetD32Async(fresh, 0, 2, stream), "cuMemsetD32Async");
  if (error.failed()) return error;
  words_.emplace(key, Word{fresh, id});
  free_.pop_back();
  *word = fresh;
  return {};
}

void BarrierWords::Clear(const Driver& driver) {
  for (Address slab : slabs_) driver.MemFree(slab);
  slabs_.clear();
  free_.clear();
  words_.clear();
}

Error Describe(const Driver& driver, ContextState* state) {
  int cooperative = 0, service = 0;
  const std::pair<int, int*> attributes[] = {
      {kMajor, &state->major},
      {kMinor, &state->minor},
      {kMultiprocessors, &state->multiprocessors},
      {kSharedPerBlock, &state->shared_default},
      {kSharedPerBlockOptIn, &state->shared_limit},
      {kCooperativeLaunch, &cooperative},
  };
  for (auto [attribute, value] : attributes) {
    Error error = Judge(driver, driver.DeviceGetAttribute(value, attribute, state->device),
                        "cuDeviceGetAttribute " + std::to_string(attribute));
    if (error.failed()) return error;
  }
  // Drivers before CUDA 12.1 do not know this attribute, and refuse to say.
  Result known = driver.DeviceGetAttribute(&service, kMultiProcessService, state->device);
  if (known != kInvalidValue) {
    Error error = Judge(driver, known, "cuDeviceGetAttribute of the multi-process service");
    if (error.failed()) return error;
  }
  state->cooperative = cooperative != 0;
  state->shared_by_service = known == kSuccess && service != 0;
  state->shared_limit = std::max(state->shared_limit, state->shared_default);
  return {};
}

}  // namespace stitch::cuda

using stitch::cuda::Context;
using stitch::cuda::ContextScope;
using stitch::cuda::ContextState;
using stitch::cuda::Device;
using stitch::cuda::Error;
using stitch::cuda::Judge;

Error StitchCuda::Primary(int device, Context* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = primaries_.find(device);
  if (found != primaries_.end()) return *context = found->second.context, Error{};
  PrimaryContext made{};
  Error error = Judge(driver, driver.DeviceGet(&made.device, device),
                      "cuDeviceGet of device " + std::to_string(device), STITCH_NO_DEVICE);
  if (error.failed()) return error;
  PrimaryContext* kept = &primaries_.emplace(device, made).first->second;
  error = Judge(driver, driver.DevicePrimaryCtxRetain(&kept->context, kept->device),
                "cuDevicePrimaryCtxRetain");
  if (error.failed()) return primaries_.erase(device), error;
  *context = kept->context;
  return {};
}

Error StitchCuda::Enter(int device, ContextScope* scope, std::shared_ptr<ContextState>* state) {
  Context context = nullptr;
  if (device >= 0) {
    Error error = Primary(device, &context);
    if (!error.failed()) error = scope->Push(context);
    if (error.failed()) return error;
  } else {
    Error error = Judge(driver, driver.CtxGetCurrent(&context), "cuCtxGetCurrent");
    if (error.failed()) return error;
    if (context == nullptr) return {STITCH_NO_CONTEXT, "no CUDA context is current"};
  }
  unsigned long long id = 0;
  if (driver.CtxGetId != nullptr) {
    Error error = Judge(driver, driver.CtxGetId(context, &id), "cuCtxGetId");
    if (error.failed()) return error;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto one = states_.begin(); one != states_.end(); ++one) {
    if ((*one)->handle != context) continue;
    if ((*one)->id == id) return *state = *one, Error{};
    (*one)->gone = true;  // the handle is a later context's
    states_.erase(one);
    break;
  }
  auto made = std::make_shared<ContextState>();
  made->handle = context;
  made->id = id;
  Error error = Judge(driver, driver.CtxGetDevice(&made->device), "cuCtxGetDevice");
  if (!error.failed()) error = Describe(driver, made.get());
  if (error.failed()) return error;
  states_.push_back(made);
  *state = std::move(made);
  return {};
}

Error StitchCuda::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!states_.empty()) {
    ContextState& state = *states_.back();
    ContextScope scope(driver);
    Error error = scope.Push(state.handle);
    if (error.failed() && error.reason != STITCH_NO_CONTEXT) return error;
    if (!error.failed()) {
      driver.CtxSynchronize();
      state.pinned.Clear(driver);
      state.barriers.Clear(driver);
    }
    states_.pop_back();
  }
  for (auto& [device, primary] : primaries_) driver.DevicePrimaryCtxRelease(primary.device);
  primaries_.clear();
  return {};
}
