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
  std::map<std::string, std::string> first;  // by kernel key
};

// Never destroyed: a step may still fail while static destructors run.
Failures& Instance() {
  static Failures* failures = new Failures;
  return *failures;
}

}  // namespace

void AddFailure(const std::string& key, const std::string& message) {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  Failures& failures = Instance();
  std::lock_guard<std::mutex> lock(failures.mutex);
  failures.first.emplace(key, line);
}

}  // namespace stitch

char* stitch_failures() {
  stitch::Failures& failures = stitch::Instance();
  std::lock_guard<std::mutex> lock(failures.mutex);
  if (failures.first.empty()) return nullptr;
  std::string text;
  for (const auto& [key, message] : failures.first) text += key + '\t' + message + '\n';
  return strdup(text.c_str());
}
