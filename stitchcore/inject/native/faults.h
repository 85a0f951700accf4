// Faults on purpose: docs/faults.md says which a job survives, and tests let each happen.
#ifndef STITCH_FAULTS_H_
#define STITCH_FAULTS_H_

#include <atomic>
#include <string>

namespace stitch {

extern std::atomic<int> faults_armed;

bool FaultDue(const char* point, const std::string& kernel);

// True when this pass of `point` by the operation of `kernel` is to fail. Nothing is armed in a
// user's job: it costs one load.
inline bool Fault(const char* point, const std::string& kernel) {
  return faults_armed.load(std::memory_order_relaxed) > 0 && FaultDue(point, kernel);
}

}  // namespace stitch

#endif  // STITCH_FAULTS_H_
