#include "table.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "cubin.h"

namespace stitch::cuda {
namespace {

constexpr char kMagic[] = "STLAUNCH";
constexpr uint32_t kVersion = 1;
constexpr int64_t kMostThreads = 1024, kMostShared = 1 << 20, kLongestName = 512, kMostChecks = 255;
constexpr int64_t kMostWords = 1 << 20;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t checksum;  // CRC-32 of what follows it
  uint64_t size;      // of the whole file
  uint64_t words;     // int64 each, after the header; then names and cubins
};
static_assert(sizeof(Header) == 32);

constexpr std::array<uint32_t, 256> CrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ (value & 1 ? 0xedb88320u : 0);
    table[i] = value;
  }
  return table;
}

// The checksum of zlib and PNG.
uint32_t Crc32(const char* data, size_t size) {
  static constexpr std::array<uint32_t, 256> table = CrcTable();
  uint32_t value = ~0u;
  for (size_t i = 0; i < size; i++) {
    value = table[(value ^ static_cast<unsigned char>(data[i])) & 255] ^ (value >> 8);
  }
  return ~value;
}

bool IsName(const std::string& text) {
  for (size_t i = 0; i < text.size(); i++) {
    char c = text[i];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(i > 0 && c >= '0' && c <= '9')) return false;
  }
  return !text.empty();
}

// Reads a table's entries in the order of the file. Every count is bounded by the words there are:
// each entry takes at least one.
class Entries {
 public:
  Entries(const std::vector<int64_t>& words, Table* table)
      : reader_(words.data(), words.size()),
        words_(static_cast<int64_t>(words.size())),
        table_(*table) {}

  bool Read(std::string* error) {
    table_.driver = reader_.Next(0, INT32_MAX, "driver version");
    table_.symbols = static_cast<size_t>(reader_.Next(0, words_, "symbol count"));
    ReadBuffers(&table_.inputs);
    ReadBuffers(&table_.outputs);
    table_.arena = ReadExpression();
    for (int64_t n = Count(); n > 0 && reader_.ok(); n--) {
      Program offset = ReadExpression();
      table_.regions.push_back({std::move(offset), ReadExpression()});
    }
    table_.checks = reader_.Next(0, words_, "check count");
    table_.checks_region = RegionOrNone();
    table_.barrier_region = RegionOrNone();
    if (table_.checks > 0 && table_.checks_region < 0) reader_.Fail("no region for checks");
    for (int64_t n = Count(); n > 0 && reader_.ok(); n--) ReadModule();
    for (int64_t n = Count(); n > 0 && reader_.ok(); n--) ReadKernel();
    for (int64_t n = Count(); n > 0 && reader_.ok(); n--) ReadLaunch();
    if (reader_.ok() && !reader_.at_end()) reader_.Fail("words left over");
    *error = reader_.error();
    return reader_.ok();
  }

 private:
  int64_t Count() { return reader_.Next(0, words_, "entry count"); }
  Program ReadExpression() { return ReadProgram(&reader_, table_.symbols); }
  template <typename T>
  int64_t Position(const std::vector<T>& among, const char* what) {
    return reader_.Next(0, static_cast<int64_t>(among.size()) - 1, what);
  }
  int64_t RegionOrNone() {
    return reader_.Next(-1, static_cast<int64_t>(table_.regions.size()) - 1, "region");
  }
  void ReadBuffers(std::vector<Program>* buffers) {
    for (int64_t n = Count(); n > 0 && reader_.ok(); n--) buffers->push_back(ReadExpression());
  }

  void ReadPart(size_t* offset, size_t* size, int64_t most, const char* what) {
    auto available = static_cast<int64_t>(table_.blob.size());
    int64_t begin = reader_.Next(0, available, what);
    *offset = static_cast<size_t>(begin);
    *size = static_cast<size_t>(reader_.Next(1, std::min(most, available - begin), what));
  }

  void ReadModule() {
    ModuleEntry module;
    for (int64_t n = Count(); n > 0 && reader_.ok(); n--) {
      Cubin cubin{};
      cubin.major = static_cast<int>(reader_.Next(1, 1000, "architecture"));
      cubin.minor = static_cast<int>(reader_.Next(0, 9, "architecture"));
      ReadPart(&cubin.offset, &cubin.size, INT64_MAX, "cubin");
      const char* image = table_.blob.data() + cubin.offset;
      if (reader_.ok() && !IsCubin(image, cubin.size) && !IsPtx(image, cubin.size)) {
        reader_.Fail("no cubin");
      }
      for (const Cubin& other : module.cubins) {
        if (other.major == cubin.major && other.minor == cubin.minor) reader_.Fail("cubin twice");
      }
      module.cubins.push_back(cubin);
    }
    if (module.cubins.empty()) reader_.Fail("module without a cubin");
    table_.modules.push_back(std::move(module));
  }

  void ReadKernel() {
    KernelEntry kernel;
    size_t offset = 0, size = 0;
    ReadPart(&offset, &size, kLongestName, "kernel name");
    if (reader_.ok()) kernel.name = table_.blob.substr(offset, size);
    if (reader_.ok() && !IsName(kernel.name)) reader_.Fail("kernel name");
    kernel.module = static_cast<int>(Position(table_.modules, "module"));
    kernel.threads = static_cast<int>(reader_.Next(1, kMostThreads, "threads"));
    kernel.shared_bytes = static_cast<int>(reader_.Next(0, kMostShared, "shared bytes"));
    kernel.cooperative = reader_.Next(0, 1, "cooperative") != 0;
    kernel.capped = reader_.Next(0, 1, "capped") != 0;
    kernel.words = reader_.Next(1, kMostWords, "kernel words");
    kernel.checks = reader_.Next(0, kMostChecks, "kernel checks");
    table_.kernels.push_back(std::move(kernel));
  }

  void ReadLaunch() {
    LaunchEntry launch;
    launch.kernel = static_cast<int>(Position(table_.kernels, "kernel"));
    launch.grid = ReadExpression();
    launch.words_region = RegionOrNone();
    launch.first_check = reader_.Next(-1, table_.checks, "first check");
    int64_t count = Count();
    if (!reader_.ok()) return;
    const KernelEntry& kernel = table_.kernels[launch.kernel];
    if (count != kernel.words) reader_.Fail("word count");
    if ((kernel.words > kParameterWords) != (launch.words_region >= 0)) {
      reader_.Fail("words region");
    }
    bool has_checks = kernel.checks > 0;
    if (has_checks != (launch.first_check >= 0) ||
        (has_checks && launch.first_check + kernel.checks > table_.checks)) {
      reader_.Fail("first check");
    }
    for (int64_t i = 0; i < count && reader_.ok(); i++) {
      launch.words.push_back(ReadWord(kernel));
      launch.has_barrier |= launch.words.back().kind == WordKind::kBarrier;
    }
    table_.launches.push_back(std::move(launch));
  }

  Word ReadWord(const KernelEntry& kernel) {
    Word word{static_cast<WordKind>(reader_.Next(0, 5, "word kind")), 0, {}};
    switch (word.kind) {
      case WordKind::kInput: word.position = Position(table_.inputs, "input"); break;
      case WordKind::kOutput: word.position = Position(table_.outputs, "output"); break;
      case WordKind::kRegion: word.position = Position(table_.regions, "region"); break;
      case WordKind::kValue: word.value = ReadExpression(); break;
      case WordKind::kBarrier:
        if (!kernel.cooperative || table_.barrier_region < 0) reader_.Fail("barrier word");
        break;
      case WordKind::kChecks:
        if (kernel.checks == 0) reader_.Fail("word of checks");
        break;
    }
    return word;
  }

  Reader reader_;
  int64_t words_;
  Table& table_;
};

}  // namespace

bool Decode(const char* data, size_t size, Table* table, std::string* error) {
  Header header;
  if (size < sizeof header) return *error = "shorter than its header", false;
  memcpy(&header, data, sizeof header);
  if (memcmp(header.magic, kMagic, sizeof header.magic) != 0) {
    return *error = "not a launch table", false;
  }
  if (header.version != kVersion) {
    return *error = "version " + std::to_string(header.version) + " is not known", false;
  }
  if (header.size != size) return *error = "cut short or too long", false;
  if (header.words > (size - sizeof header) / sizeof(int64_t)) {
    return *error = "more words than bytes", false;
  }
  size_t covered = offsetof(Header, size);
  if (Crc32(data + covered, size - covered) != header.checksum) {
    return *error = "damaged: its checksum differs", false;
  }
  std::vector<int64_t> words(header.words);
  size_t bytes = words.size() * sizeof(int64_t);
  if (bytes != 0) memcpy(words.data(), data + sizeof header, bytes);
  table->blob.assign(data + sizeof header + bytes, size - sizeof header - bytes);
  return Entries(words, table).Read(error);
}

}  // namespace stitch::cuda
