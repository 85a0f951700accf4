// What a cubin says of its kernels, as NVRTC 12 writes it: parameters and limits in .nv.info.NAME,
// shared memory in .nv.shared.NAME, registers in the text section's header.
#include <elf.h>
#include <string.h>

#include <algorithm>
#include <regex>
#include <string>

#include "standin.h"

namespace standin {
namespace {

constexpr unsigned char kParameter = 0x17, kMaxThreads = 0x05, kWithSize = 0x04;

void ReadInfo(const char* data, size_t size, KernelImage* kernel) {
  for (size_t at = 0; at + 4 <= size;) {
    auto format = static_cast<unsigned char>(data[at]);
    auto attribute = static_cast<unsigned char>(data[at + 1]);
    uint16_t length = 0;
    memcpy(&length, data + at + 2, 2);
    const char* value = data + at + 4;
    at += 4 + (format == kWithSize ? length : 0);
    if (format != kWithSize || at > size) continue;
    if (attribute == kMaxThreads && length >= 4) memcpy(&kernel->max_threads, value, 4);
    if (attribute != kParameter || length < 12) continue;
    uint16_t ordinal = 0, offset = 0;
    uint32_t flags = 0;
    memcpy(&ordinal, value + 4, 2);
    memcpy(&offset, value + 6, 2);
    memcpy(&flags, value + 8, 4);
    if (kernel->parameter_sizes.size() <= ordinal) {
      kernel->parameter_sizes.resize(ordinal + 1);
      kernel->parameter_offsets.resize(ordinal + 1);
    }
    kernel->parameter_sizes[ordinal] = flags >> 18;
    kernel->parameter_offsets[ordinal] = offset;
  }
}

// What a driver that compiles PTX knows of its kernels afterwards, but for their registers.
bool ReadPtx(const std::string& text, CubinImage* image) {
  static const std::regex target(R"(\n\.target sm_(\d+))"), entry(R"(\.entry (\w+)\()"),
      parameter(R"(\.b8 \w+_param_\d+\[(\d+)\])"), threads(R"(^\s*\.maxntid (\d+))");
  std::smatch found;
  if (!std::regex_search(text, found, target)) return false;
  image->is_ptx = true;
  image->architecture = std::stoi(found[1]);
  for (std::sregex_iterator one(text.begin(), text.end(), entry), none; one != none; ++one) {
    KernelImage& kernel = image->kernels[(*one)[1]];
    kernel.registers = 64;
    auto begin = one->suffix().first, closed = std::find(begin, text.end(), ')');
    size_t offset = 0;
    for (std::sregex_iterator word(begin, closed, parameter); word != none; ++word) {
      kernel.parameter_offsets.push_back(offset);
      kernel.parameter_sizes.push_back(std::stoul((*word)[1]));
      offset += kernel.parameter_sizes.back();
    }
    std::string after(closed + 1, std::find(closed, text.end(), '{'));
    if (std::regex_search(after, found, threads)) kernel.max_threads = std::stoi(found[1]);
  }
  return !image->kernels.empty();
}

}  // namespace

bool Suits(const CubinImage& image, int major, int minor) {
  if (image.is_ptx) return image.architecture <= 10 * major + minor;
  return image.architecture / 10 == major && image.architecture % 10 <= minor;
}

bool ReadCubin(const char* data, CubinImage* image) {
  Elf64_Ehdr header;
  if (memcmp(data, ELFMAG, SELFMAG) != 0) return ReadPtx(data, image);
  memcpy(&header, data, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != 190) return false;
  bool newer = header.e_ident[EI_ABIVERSION] >= 8;
  image->architecture = (newer ? header.e_flags >> 8 : header.e_flags) & 255;
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (sections.empty()) return false;
  memcpy(sections.data(), data + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  const char* names = data + sections[header.e_shstrndx].sh_offset;
  auto after = [](const std::string& name, const char* prefix) {
    size_t length = strlen(prefix);
    return name.compare(0, length, prefix) == 0 ? name.substr(length) : std::string();
  };
  for (const Elf64_Shdr& section : sections) {
    std::string name = names + section.sh_name;
    if (std::string kernel = after(name, ".text."); !kernel.empty()) {
      image->kernels[kernel].registers = static_cast<int>(section.sh_info >> 24);
    } else if (kernel = after(name, ".nv.shared."); !kernel.empty() && kernel != "reserved.0") {
      image->kernels[kernel].shared_bytes = section.sh_size;
    } else if (kernel = after(name, ".nv.info."); !kernel.empty()) {
      ReadInfo(data + section.sh_offset, section.sh_size, &image->kernels[kernel]);
    }
  }
  return !image->kernels.empty();
}

}  // namespace standin
