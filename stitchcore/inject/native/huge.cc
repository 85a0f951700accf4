#include "huge.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <unordered_map>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; an older kernel answers EINVAL, and khugepaged does it later
#endif

namespace stitch {
namespace {

constexpr uintptr_t kFrame = uintptr_t{2} << 20;
constexpr uintptr_t kUnits = 64, kUnit = kFrame / kUnits;
constexpr char kPolicy[] = "/sys/kernel/mm/transparent_hugepage/enabled";

bool Allowed() {
  char text[64];
  int file = open(kPolicy, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  if (size <= 0) return false;
  text[size] = 0;
  return strstr(text, "[never]") == nullptr;
}

// What was noted of each frame of 2 MiB, a bit for each 32 KiB. TensorFlow's allocator never gives
// its regions back, so memory once in use stays resident; a frame that the system had to refuse is
// not asked for again.
struct Frames {
  std::mutex mutex;
  std::unordered_map<uintptr_t, uint64_t> noted;
  int64_t asked = 0;
};

Frames& Instance() {
  static Frames* frames = new Frames;  // never destroyed: kernels may outlive static destructors
  return *frames;
}

void Ask(uintptr_t frame) {
  void* start = reinterpret_cast<void*>(frame * kFrame);
  if (madvise(start, kFrame, MADV_HUGEPAGE) == 0) madvise(start, kFrame, MADV_COLLAPSE);
}

// The bits from unit `first` to unit `last` of a frame, both included.
uint64_t Bits(uintptr_t first, uintptr_t last) {
  return (~uint64_t{0} << first) & (~uint64_t{0} >> (kUnits - 1 - last));
}

}  // namespace

void NoteForHugePages(const void* data, size_t bytes) {
  static const bool allowed = Allowed();
  if (!allowed || bytes < kHugeBytes) return;
  uintptr_t begin = reinterpret_cast<uintptr_t>(data) / kUnit;
  uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes - 1) / kUnit;
  Frames& frames = Instance();
  std::lock_guard<std::mutex> lock(frames.mutex);
  for (uintptr_t frame = begin / kUnits; frame <= end / kUnits; frame++) {
    uint64_t& noted = frames.noted[frame];
    if (noted == ~uint64_t{0}) continue;
    uintptr_t first = frame == begin / kUnits ? begin % kUnits : 0;
    uintptr_t last = frame == end / kUnits ? end % kUnits : kUnits - 1;
    noted |= Bits(first, last);
    if (noted != ~uint64_t{0}) continue;
    Ask(frame);
    frames.asked += kFrame;
  }
}

int64_t HugeBytesAsked() {
  Frames& frames = Instance();
  std::lock_guard<std::mutex> lock(frames.mutex);
  return frames.asked;
}

}  // namespace stitch
