#include "cubin.h"

#include <elf.h>
#include <string.h>

namespace stitch::cuda {
namespace {

constexpr uint16_t kMachine = 190;  // EM_CUDA

bool Within(uint64_t offset, uint64_t bytes, size_t size) {
  return offset <= size && bytes <= size - offset;
}

}  // namespace

bool IsCubin(const char* data, size_t size) {
  Elf64_Ehdr header;
  if (size < sizeof header) return false;
  memcpy(&header, data, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return false;
  }
  if (header.e_machine != kMachine || header.e_shentsize != sizeof(Elf64_Shdr)) return false;
  if (header.e_phnum != 0 && header.e_phentsize != sizeof(Elf64_Phdr)) return false;
  if (!Within(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr), size)) return false;
  if (!Within(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr), size)) return false;
  if (header.e_shnum == 0 || header.e_shstrndx >= header.e_shnum) return false;
  for (size_t i = 0; i < header.e_shnum; i++) {
    Elf64_Shdr section;
    memcpy(&section, data + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (!Within(section.sh_offset, section.sh_size, size)) return false;
  }
  return true;
}

bool IsPtx(const char* data, size_t size) {
  return size > 0 && memchr(data, '\0', size) == data + size - 1 &&
         strstr(data, "\n.version ") != nullptr;
}

}  // namespace stitch::cuda
