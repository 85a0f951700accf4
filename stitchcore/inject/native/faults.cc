#include "faults.h"

#include <mutex>
#include <vector>

#include "exports.h"

namespace stitch {

std::atomic<int> faults_armed{0};

namespace {

struct Armed {
  std::string point, kernel;
  int64_t passes;  // left until it happens
};

struct Faults {
  std::mutex mutex;
  std::vector<Armed> armed;
};

Faults& Instance() {
  static Faults* faults = new Faults;
  return *faults;
}

}  // namespace

bool FaultDue(const char* point, const std::string& kernel) {
  Faults& faults = Instance();
  std::lock_guard<std::mutex> lock(faults.mutex);
  bool due = false;
  for (Armed& one : faults.armed) {
    bool here = one.point == point && (one.kernel.empty() || one.kernel == kernel);
    if (!here || one.passes == 0 || --one.passes > 0) continue;
    due = true;
    faults_armed--;
  }
  return due;
}

}  // namespace stitch

void stitch_arm_fault(const char* point, const char* kernel, int64_t pass) {
  auto& faults = stitch::Instance();
  std::lock_guard<std::mutex> lock(faults.mutex);
  faults.armed.push_back({point, kernel, pass});
  stitch::faults_armed++;
}
