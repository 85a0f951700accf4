#include "kernels.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "exports.h"

namespace stitch {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, Kernel> kernels;
  std::map<std::string, std::atomic<bool>> retired;
};

Registry& Instance() {
  static Registry* registry = new Registry;
  return *registry;
}

bool WriteAll(int file, const char* data, size_t size) {
  while (size > 0) {
    ssize_t written = write(file, data, size);
    if (written <= 0) return false;
    data += written;
    size -= written;
  }
  return true;
}

// dlopen maps segments that lie beyond the end of a cut file, and touching them kills the process.
bool IsWholeLibrary(const char* data, size_t size) {
  Elf64_Ehdr header;
  if (size < sizeof header) return false;
  memcpy(&header, data, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_type != ET_DYN) return false;
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > size) return false;
  if (header.e_phnum > (size - header.e_phoff) / sizeof(Elf64_Phdr)) return false;
  for (int i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    memcpy(&segment, data + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_type != PT_LOAD) continue;
    if (segment.p_offset > size || segment.p_filesz > size - segment.p_offset) return false;
  }
  return true;
}

}  // namespace

Kernel FindKernel(const std::string& key) {
  Registry& registry = Instance();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto found = registry.kernels.find(key);
  return found == registry.kernels.end() ? nullptr : found->second;
}

std::atomic<bool>* Retired(const std::string& key) {
  Registry& registry = Instance();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return &registry.retired[key];
}

}  // namespace stitch

void stitch_retire_kernel(const char* key, int retired) { *stitch::Retired(key) = retired != 0; }

void* stitch_load_library(const char* data, size_t size, char* error, size_t error_size) {
  if (!stitch::IsWholeLibrary(data, size)) {
    return snprintf(error, error_size, "not a whole shared object"), nullptr;
  }
  int file = memfd_create("stitched", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return snprintf(error, error_size, "memfd_create failed"), nullptr;
  bool whole = stitch::WriteAll(file, data, size) &&
               fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0;
  void* library = nullptr;
  if (whole) {
    std::string path = "/proc/self/fd/" + std::to_string(file);
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    snprintf(error, error_size, "%s", whole ? dlerror() : "write failed");
    close(file);
  }
  // A loaded library's descriptor stays open: dlopen knows libraries by path, and a reused number
  // would give back the earlier library.
  return library;
}

int stitch_register_kernel(const char* key, void* library, const char* symbol) {
  void* found = dlsym(library, symbol);
  if (found == nullptr) return 0;
  auto& registry = stitch::Instance();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.kernels[key] = reinterpret_cast<stitch::Kernel>(found);
  return 1;
}
