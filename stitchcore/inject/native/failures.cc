#include "failures.h"

#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "exports.h"

namespace stitch {
namespace {

struct Failure {
  int64_t count = 0;
  std::string first;
};

struct Failures {
  std::mutex mutex;
  std::map<std::string, Failure> all;
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
  Failure& failure = failures.all[key];
  if (failure.count++ == 0) failure.first = line;
}

}  // namespace stitch

char* stitch_failures() {
  stitch::Failures& failures = stitch::Instance();
  std::lock_guard<std::mutex> lock(failures.mutex);
  if (failures.all.empty()) return nullptr;
  std::string text;
  for (const auto& [key, failure] : failures.all) {
    text += key + '\t' + std::to_string(failure.count) + '\t' + failure.first + '\n';
  }
  return strdup(text.c_str());
}
