// When a pass of a step was: by the host's clock, or by that of the device whose stream it is in.
// Of a GPU's step the host's clock tells when work was put into a stream: what its host waits for,
// not what the step takes.
#ifndef STITCH_MOMENT_H_
#define STITCH_MOMENT_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace stitch {

// A place in the work of a device.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  enum class Known { kYes, kNotYet, kNever };
  // Nanoseconds from `earlier`, a mark of the same kind, to this one. Waits for nothing.
  virtual Known Since(const DeviceMark& earlier, int64_t* nanoseconds) const = 0;
};

// Puts a mark where a stream's work has got to, from any thread; nullptr where that cannot be.
using Marker = std::function<std::shared_ptr<DeviceMark>()>;

struct Moment {
  int64_t host;                        // nanoseconds
  std::shared_ptr<DeviceMark> device;  // nullptr: the host's clock tells
};

}  // namespace stitch

#endif  // STITCH_MOMENT_H_
