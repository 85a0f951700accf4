#include "failures.h"

#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "exports.h"

namespace stitch {
namespace {

struct Failures {
  std::mutex mutex;
  std::map<std::string, int64_t> all;  // by kernel, node and message, a TAB between them
};

// Never destroyed: a step may still fail while static destructors run.
Failures& Instance() {
  static Failures* failures = new Failures;
  return *failures;
}

}  // namespace

void AddFailure(const std::string& kernel, const std::string& node, const std::string& message) {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  Failures& failures = Instance();
  std::lock_guard<std::mutex> lock(failures.mutex);
  failures.all[kernel + '\t' + node + '\t' + line]++;
}

}  // namespace stitch

char* stitch_failures() {
  stitch::Failures& failures = stitch::Instance();
  std::lock_guard<std::mutex> lock(failures.mutex);
  if (failures.all.empty()) return nullptr;
  std::string text;
  for (const auto& [failure, count] : failures.all) {
    text += std::to_string(count) + '\t' + failure + '\n';
  }
  return strdup(text.c_str());
}
