// SE_InitPlugin: the device "GPU" of TensorFlow's PluggableDevice interface, and its streams.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <chrono>
#include <map>
#include <set>
#include <vector>

#include "fake_gpu.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace fake_gpu {
namespace {

std::mutex all_mutex;
std::set<Stream*>& All() {
  static auto* all = new std::set<Stream*>;
  return *all;
}

}  // namespace

namespace {

int64_t Now() {  // nanoseconds of this machine
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

int64_t Number(const char* variable, int64_t otherwise) {
  const char* text = getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : atoll(text);
}

int DeviceCount() {
  int count = static_cast<int>(Number("FAKE_GPU_COUNT", 1)), shown = 0;
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return count;
  while (*visible != '\0') {
    char* end = nullptr;
    long device = strtol(visible, &end, 10);
    if (end == visible || device < 0 || device >= count) break;
    shown++;
    visible = *end == ',' ? end + 1 : end;
  }
  return shown;
}

// FAKE_GPU_LOG names a file; each line begins with nanoseconds.
void Log(const char* format, ...) {
  static FILE* file = [] {
    const char* path = getenv("FAKE_GPU_LOG");
    return path == nullptr || *path == '\0' ? nullptr : fopen(path, "a");
  }();
  if (file == nullptr) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(file, "%lld %s\n", static_cast<long long>(Now()), line);
  fflush(file);
}

int& ComputingOn() {
  thread_local int device = -1;
  return device;
}

namespace {

std::mutex pages_mutex;
auto& pages = *new std::map<char*, size_t>;  // bytes of each block; streams may outlive this file
int touching = 0;

void Protect(int protection) {
  for (auto& [block, bytes] : pages) {
    if (mprotect(block, bytes, protection) != 0) abort();
  }
}

}  // namespace

void* DeviceAllocate(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
  std::lock_guard<std::mutex> lock(pages_mutex);
  int protection = touching > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* data = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  pages[static_cast<char*>(data)] = bytes;
  return data;
}

void DeviceFree(void* memory) {
  std::lock_guard<std::mutex> lock(pages_mutex);
  auto found = pages.find(static_cast<char*>(memory));
  if (found == pages.end()) return;
  munmap(found->first, found->second);
  pages.erase(found);
}

bool OnDevice(const void* address) {
  std::lock_guard<std::mutex> lock(pages_mutex);
  auto* at = static_cast<char*>(const_cast<void*>(address));
  auto found = pages.upper_bound(at);
  if (found == pages.begin()) return false;
  --found;
  return at < found->first + found->second;
}

Touching::Touching() {
  std::lock_guard<std::mutex> lock(pages_mutex);
  if (touching++ == 0) Protect(PROT_READ | PROT_WRITE);
}

Touching::~Touching() {
  std::lock_guard<std::mutex> lock(pages_mutex);
  if (--touching == 0) Protect(PROT_NONE);
}

void Mark::Pass(int64_t now) {
  std::lock_guard<std::mutex> lock(mutex);
  passed = true;
  nanoseconds = now;
  passed_now.notify_all();
}

void Mark::Wait() {
  std::unique_lock<std::mutex> lock(mutex);
  passed_now.wait(lock, [this] { return passed; });
}

bool Mark::Passed() {
  std::lock_guard<std::mutex> lock(mutex);
  return passed;
}

Stream::Stream(int on) : device(on), id([] {
  static std::atomic<uint64_t> next{1};
  return next++;
}()) {
  std::lock_guard<std::mutex> lock(all_mutex);
  All().insert(this);
  if (Number("FAKE_GPU_SYNC", 0) == 0) thread_ = std::thread([this] { Loop(); });
}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(all_mutex);
    All().erase(this);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Stream::Run(const Work& work) {
  static const int64_t every = Number("FAKE_GPU_OP_US", 10);
  static const bool paced = Number("FAKE_GPU_PACED", 0) != 0;
  static const int64_t jitter = Number("FAKE_GPU_JITTER", 0);
  int64_t cost = 1000 * (work.cost >= 0 ? work.cost : every), begin = Now();
  if (jitter > 0) {
    noise_ = noise_ * 1664525 + 1013904223;  // Numerical Recipes' generator
    cost += cost * (static_cast<int64_t>((noise_ >> 8) % (2 * jitter + 1)) - jitter) / 100;
  }
  if (work.name.empty()) {  // a mark, a wait: on no data
    work.run();
  } else {
    Touching data;
    work.run();
  }
  clock_ += cost;
  while (paced && Now() < begin + cost) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(begin + cost - Now()));
  }
  if (!work.name.empty()) {
    Log("ran %s gpu%d stream%llu %lld", work.name.c_str(), device,
        static_cast<unsigned long long>(id), static_cast<long long>(Now() - begin));
  }
}

void Stream::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Run(work);
    lock.lock();
    done_++;
    changed_.notify_all();
  }
}

void Stream::Push(const char* name, std::function<void()> work, int64_t cost) {
  if (*name != '\0') {
    Log("put %s gpu%d stream%llu", name, device, static_cast<unsigned long long>(id));
  }
  if (!thread_.joinable()) return Run({name, std::move(work), cost});
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({name, std::move(work), cost});
    issued_++;
    changed_.notify_all();
  }
}

std::shared_ptr<Mark> Stream::Record() {
  auto mark = std::make_shared<Mark>();
  Push("", [this, mark] { mark->Pass(clock_); }, 0);
  return mark;
}

void Stream::WaitFor(std::shared_ptr<Mark> mark) {
  if (mark == nullptr) return;
  auto wait = [this, mark] {
    mark->Wait();
    clock_ = std::max(clock_, mark->nanoseconds);
  };
  Push("", wait, 0);
}

void Stream::Drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t until = issued_;
  changed_.wait(lock, [&] { return done_ >= until; });
}

std::vector<std::shared_ptr<Mark>> RecordAll(const Stream* but) {
  std::vector<std::shared_ptr<Mark>> marks;
  std::lock_guard<std::mutex> lock(all_mutex);
  for (Stream* stream : All()) {
    if (stream != but) marks.push_back(stream->Record());
  }
  return marks;
}

void DrainAll() {
  for (auto& mark : RecordAll(nullptr)) mark->Wait();
}

}  // namespace fake_gpu

using fake_gpu::Log;
using fake_gpu::Mark;

struct SP_Event_st {
  std::shared_ptr<Mark> mark;  // nullptr: never recorded, which counts as passed
};
struct SP_Timer_st {
  std::shared_ptr<Mark> start, stop;
};

namespace {

std::mutex memory_mutex;
std::map<void*, uint64_t> blocks;
int64_t used[64], most[64];

int64_t Limit() { return fake_gpu::Number("FAKE_GPU_MEMORY_MB", 1024) << 20; }

void Good(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = nullptr;
  std::lock_guard<std::mutex> lock(memory_mutex);
  if (used[device->ordinal] + static_cast<int64_t>(size) > Limit()) return;
  void* data = fake_gpu::DeviceAllocate(size);
  if (fake_gpu::Number("FAKE_GPU_POISON", 0) != 0) {
    fake_gpu::Touching fresh;
    memset(data, 0xff, size);  // NaN
  }
  blocks[data] = size;
  used[device->ordinal] += size;
  most[device->ordinal] = std::max(most[device->ordinal], used[device->ordinal]);
  memory->opaque = data;
  memory->size = size;
  Log("allocated %llu bytes gpu%d", static_cast<unsigned long long>(size), device->ordinal);
}

void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  if (memory->opaque == nullptr) return;
  std::lock_guard<std::mutex> lock(memory_mutex);
  used[device->ordinal] -= blocks[memory->opaque];
  blocks.erase(memory->opaque);
  fake_gpu::DeviceFree(memory->opaque);
}

void* HostAllocate(const SP_Device*, uint64_t size) {
  return aligned_alloc(256, (size + 255) / 256 * 256);
}
void HostDeallocate(const SP_Device*, void* memory) { free(memory); }

TF_Bool Statistics(const SP_Device* device, SP_AllocatorStats* out) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  out->bytes_in_use = used[device->ordinal];
  out->peak_bytes_in_use = most[device->ordinal];
  out->has_bytes_limit = 1;
  out->bytes_limit = Limit();
  return 1;
}

TF_Bool Usage(const SP_Device* device, int64_t* left, int64_t* total) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  *total = Limit();
  *left = Limit() - used[device->ordinal];
  return 1;
}

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  *stream = new SP_Stream_st(device->ordinal);
  Log("stream%llu gpu%d made", static_cast<unsigned long long>((*stream)->id), device->ordinal);
  Good(status);
}
void DestroyStream(const SP_Device*, SP_Stream stream) { delete stream; }

void Depend(const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status* status) {
  dependent->WaitFor(other->Record());
  Good(status);
}
void StreamStatus(const SP_Device*, SP_Stream, TF_Status* status) { Good(status); }

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  Good(status);
}
void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }
SE_EventStatus EventStatus(const SP_Device*, SP_Event event) {
  bool passed = event->mark == nullptr || event->mark->Passed();
  return passed ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}
void RecordEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  event->mark = stream->Record();
  Good(status);
}
void WaitForEvent(const SP_Device* const, SP_Stream stream, SP_Event event, TF_Status* const s) {
  stream->WaitFor(event->mark);
  Good(s);
}
void BlockForEvent(const SP_Device*, SP_Event event, TF_Status* status) {
  if (event->mark != nullptr) event->mark->Wait();
  Good(status);
}

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  Good(status);
}
void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }
void StartTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->start = stream->Record();
  Good(status);
}
void StopTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->stop = stream->Record();
  Good(status);
}
uint64_t Nanoseconds(SP_Timer timer) {
  timer->stop->Wait();
  return timer->stop->nanoseconds - timer->start->nanoseconds;
}

// Copies are between the places that they say.
void Require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "[fake_gpu] %s\n", what);
  abort();
}
void RequireSides(const void* device, const void* host, uint64_t size) {
  Require(size == 0 || fake_gpu::OnDevice(device), "a copy between host memory");
  Require(size == 0 || !fake_gpu::OnDevice(host), "a copy between device memory");
}

void CopyOnStream(const char* name, SP_Stream stream, void* to, const void* from, uint64_t size) {
  stream->Push(name, [=] { memcpy(to, from, size); }, 0);
}
void CopyDown(const SP_Device*, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from,
              uint64_t size, TF_Status* status) {
  RequireSides(from->opaque, to, size);
  CopyOnStream("copy_dtoh", stream, to, from->opaque, size);
  Good(status);
}
void CopyUp(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from,
            uint64_t size, TF_Status* status) {
  // On CUDA, TensorFlow has the copy's stream wait for the compute stream, whose work may still use
  // this memory. A PluggableDevice is not asked to (constants of an instantiation, 2.21).
  for (auto& mark : fake_gpu::RecordAll(stream)) stream->WaitFor(mark);
  RequireSides(to->opaque, from, size);
  CopyOnStream("copy_htod", stream, to->opaque, from, size);
  Good(status);
}
void CopyAcross(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  CopyOnStream("copy_dtod", stream, to->opaque, from->opaque, size);
  Good(status);
}
// A synchronous copy waits for all streams of the device, as on CUDA's default stream.
void CopyDownNow(const SP_Device*, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                 TF_Status* status) {
  fake_gpu::DrainAll();
  RequireSides(from->opaque, to, size);
  Log("put copy_dtoh now");
  fake_gpu::Touching data;
  memcpy(to, from->opaque, size);
  Good(status);
}
void CopyUpNow(const SP_Device*, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
               TF_Status* status) {
  fake_gpu::DrainAll();
  RequireSides(to->opaque, from, size);
  Log("put copy_htod now");
  fake_gpu::Touching data;
  memcpy(to->opaque, from, size);
  Good(status);
}
void CopyAcrossNow(const SP_Device*, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                   uint64_t size, TF_Status* status) {
  fake_gpu::DrainAll();
  fake_gpu::Touching data;
  memcpy(to->opaque, from->opaque, size);
  Good(status);
}
void BlockUntilDone(const SP_Device*, SP_Stream stream, TF_Status* status) {
  stream->Drain();
  Good(status);
}
void SynchronizeAll(const SP_Device*, TF_Status* status) {
  fake_gpu::DrainAll();
  Good(status);
}
void SetBytes(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint8_t pattern,
              uint64_t size, TF_Status* status) {
  void* to = at->opaque;
  stream->Push("memset", [=] { memset(to, pattern, size); }, 0);
  Good(status);
}
void SetZero(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* at, uint64_t size,
             TF_Status* status) {
  SetBytes(device, stream, at, 0, size, status);
}
void SetWords(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint32_t pattern,
              uint64_t size, TF_Status* status) {
  auto* to = static_cast<uint32_t*>(at->opaque);
  stream->Push("memset32", [=] { std::fill_n(to, size / 4, pattern); }, 0);
  Good(status);
}
TF_Bool HostCallback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn function,
                     void* given) {
  auto run = [=] {
    TF_Status* status = TF_NewStatus();
    function(given, status);
    TF_DeleteStatus(status);
  };
  stream->Push("", run, 0);
  return 1;
}

void CountDevices(const SP_Platform*, int* count, TF_Status* status) {
  *count = fake_gpu::DeviceCount();
  Good(status);
}
void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* made, TF_Status* status) {
  made->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  made->device->ordinal = made->ordinal;
  made->device->hardware_name = "Fake GPU";
  made->device->device_vendor = "nobody";
  made->device->pci_bus_id = "0000:00:00.0";
  Log("device gpu%d made", made->ordinal);
  Good(status);
}
void DestroyDevice(const SP_Platform*, SP_Device*) {}
void CreateDeviceFunctions(const SP_Platform*, SE_CreateDeviceFnsParams* made, TF_Status* status) {
  made->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  Good(status);
}
void DestroyDeviceFunctions(const SP_Platform*, SP_DeviceFns*) {}
void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* made, TF_Status* status) {
  SP_StreamExecutor* e = made->stream_executor;
  e->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  e->allocate = Allocate, e->deallocate = Deallocate;
  e->host_memory_allocate = HostAllocate, e->host_memory_deallocate = HostDeallocate;
  e->unified_memory_allocate = HostAllocate, e->unified_memory_deallocate = HostDeallocate;
  e->get_allocator_stats = Statistics, e->device_memory_usage = Usage;
  e->create_stream = CreateStream, e->destroy_stream = DestroyStream;
  e->create_stream_dependency = Depend, e->get_stream_status = StreamStatus;
  e->create_event = CreateEvent, e->destroy_event = DestroyEvent;
  e->get_event_status = EventStatus, e->record_event = RecordEvent;
  e->wait_for_event = WaitForEvent, e->block_host_for_event = BlockForEvent;
  e->create_timer = CreateTimer, e->destroy_timer = DestroyTimer;
  e->start_timer = StartTimer, e->stop_timer = StopTimer;
  e->memcpy_dtoh = CopyDown, e->memcpy_htod = CopyUp, e->memcpy_dtod = CopyAcross;
  e->sync_memcpy_dtoh = CopyDownNow, e->sync_memcpy_htod = CopyUpNow;
  e->sync_memcpy_dtod = CopyAcrossNow;
  e->block_host_until_done = BlockUntilDone, e->synchronize_all_activity = SynchronizeAll;
  e->mem_zero = SetZero, e->memset = SetBytes, e->memset32 = SetWords;
  e->host_callback = HostCallback;
  Good(status);
}
void DestroyExecutor(const SP_Platform*, SP_StreamExecutor*) {}
void CreateTimerFunctions(const SP_Platform*, SP_TimerFns* made, TF_Status* status) {
  made->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  made->nanoseconds = Nanoseconds;
  Good(status);
}
void DestroyTimerFunctions(const SP_Platform*, SP_TimerFns*) {}
void DestroyPlatform(SP_Platform*) {}
void DestroyPlatformFunctions(SP_PlatformFns*) {}

}  // namespace

extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(
    SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;
  params->platform->supports_unified_memory = 0;
  params->platform->force_memory_growth = 0;
  SP_PlatformFns* f = params->platform_fns;
  f->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  f->get_device_count = CountDevices;
  f->create_device = CreateDevice, f->destroy_device = DestroyDevice;
  f->create_device_fns = CreateDeviceFunctions, f->destroy_device_fns = DestroyDeviceFunctions;
  f->create_stream_executor = CreateExecutor, f->destroy_stream_executor = DestroyExecutor;
  f->create_timer_fns = CreateTimerFunctions, f->destroy_timer_fns = DestroyTimerFunctions;
  params->destroy_platform = DestroyPlatform;
  params->destroy_platform_fns = DestroyPlatformFunctions;
  Good(status);
}
