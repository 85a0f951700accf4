#include "idle.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "shim.h"
#include "threads.h"

namespace stitch {
namespace {

constexpr size_t kPage = 4096;
constexpr int64_t kLeast = int64_t{1} << 20;  // smaller free blocks are left alone

// Gives the block's whole pages back; how many bytes of them were in memory.
int64_t Release(void* block, size_t bytes) {
  uintptr_t begin = (reinterpret_cast<uintptr_t>(block) + kPage - 1) / kPage * kPage;
  uintptr_t end = (reinterpret_cast<uintptr_t>(block) + bytes) / kPage * kPage;
  char* start = reinterpret_cast<char*>(begin);
  std::vector<unsigned char> pages((end - begin) / kPage);
  if (mincore(start, end - begin, pages.data()) != 0) return 0;
  size_t resident = std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; });
  if (resident > 0 && madvise(start, end - begin, MADV_DONTNEED) != 0) return 0;
  return static_cast<int64_t>(resident * kPage);
}

}  // namespace

void ReleaseIdlePages() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  malloc_trim(0);  // XLA's compiler leaves much behind
  const StitchShim* shim = Shim();
  StitchMemory memory;
  if (shim == nullptr || !shim->memory(&memory)) return;
  // Blocks are held until the end, so that each is another one. None is larger than what was in use
  // once and is not now, so the allocator hardly ever has to grow for it; if it does, the block has
  // no pages yet, is the last of its size, and is there to be found the next time.
  int64_t unused = memory.peak - memory.in_use;
  std::vector<void*> held;
  for (int64_t size = memory.largest; size >= kLeast; size /= 2) {
    while (size <= unused) {
      void* block = shim->allocate(size);
      if (block == nullptr) break;
      held.push_back(block);
      if (Release(block, size) < kLeast) break;  // new, or given back before
    }
  }
  for (void* block : held) shim->deallocate(block);
}

}  // namespace stitch
